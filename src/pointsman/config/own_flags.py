"""The flags that kube-proxy does not have."""

from __future__ import annotations

from pointsman.config.goflags import Flag, Kind, grouped
from pointsman.files import CONTROL_SOCKET, RUN_DIRECTORY

OWN_FLAGS: tuple[Flag, ...] = grouped(
    "Pointsman",
    Flag(
        "manifests",
        Kind.STRING,
        help="Take Services and EndpointSlices from this file or directory, watched, instead of an API server.",
    ),
    Flag("check", Kind.BOOL, help="Validate, print the effective configuration and exit."),
    Flag(
        "strict",
        Kind.BOOL,
        help="Unknown or repeated fields of the configuration file, and flags that it makes ineffective, are errors.",
    ),
    Flag("service-metrics", Kind.BOOL, help="Serve traffic counters per Service."),
    Flag(
        "service-metrics-limit",
        Kind.INT32,
        default="1000",
        help="Services counted at most with --service-metrics.",
    ),
    Flag(
        "control-socket",
        Kind.STRING,
        default=str(CONTROL_SOCKET),
        help="Socket on which status, explain and verify ask the running proxy; follows --state-dir. Empty: none.",
    ),
    Flag(
        "state-dir",
        Kind.STRING,
        default=str(RUN_DIRECTORY),
        help="Directory for what must survive a restart, such as sysctls to restore.",
    ),
    Flag(
        "host-root",
        Kind.STRING,
        default="/",
        help="Directory below which the host's /proc/sys and /sys can be written, for an init container that is not privileged.",
    ),
    Flag(
        "wait-for-instance",
        Kind.BOOL,
        help="When another instance serves this node, take over when it ends instead of exiting.",
    ),
    Flag(
        "drain-period",
        Kind.DURATION,
        default="0s",
        help="After SIGTERM, fail /healthz and the health check node ports for this long while it keeps syncing, then end; a second signal ends at once.",
    ),
    Flag(
        "probe-addresses",
        Kind.LIST,
        help="Addresses that no Service has, at most one per IP family: every few seconds a connection through each of them proves that this node's packets are translated (/readyz, status, a metric). Empty: no probe.",
    ),
    Flag(
        "external-ip-allow-cidrs",
        Kind.LIST,
        help="If set, external and load-balancer IPs outside these ranges are not programmed.",
    ),
    Flag(
        "default-scheduler",
        Kind.STRING,
        default="random",
        help="How Services without the annotation pointsman.dev/scheduler are balanced: random, weighted, source-hash, source-port-hash or least-connections. In ipvs mode --ipvs-scheduler decides.",
    ),
    Flag(
        "default-slow-start",
        Kind.DURATION,
        default="0s",
        help="How long a new endpoint takes to its full share where the annotation pointsman.dev/slow-start does not say.",
    ),
    Flag(
        "source-hash-seed",
        Kind.INT32,
        default="1",
        help="Goes into every source hash; must be the same on all nodes for them to choose the same endpoint for a client.",
    ),
    Flag(
        "source-hash-slots",
        Kind.INT32,
        default="512",
        help="Slots of a Service with a source hash, unless the annotation pointsman.dev/hash-slots says; more are finer and cost memory.",
    ),
    Flag(
        "reset-gone",
        Kind.BOOL,
        help="Reset TCP connections to endpoints that have left their Service, unless its annotation pointsman.dev/reset-gone says otherwise.",
    ),
    works_with_file=True,
)
