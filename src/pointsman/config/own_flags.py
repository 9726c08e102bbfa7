"""The flags that kube-proxy does not have. A row is all that a flag needs: its text, the option it sets, its rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from pointsman.config.goflags import Check, Flag, Kind, group_flags, option_flag
from pointsman.files import CONTROL_SOCKET
from pointsman.model.addresses import (
    Family,
    address_from_text,
    cidr_from_text,
    family_of,
    find_unusable_reason,
)
from pointsman.model.balancing import (
    HASH_SLOTS_RANGE,
    MAX_SLOW_START_SECONDS,
    OWN_SCHEDULERS,
    Scheduler,
)
from pointsman.model.service import MAX_UDP_TIMEOUT_SECONDS

SECURE_METRICS = ("remote", "all")
_NEEDS = (
    ("tls-cert-file", ("tls-private-key-file",)),
    ("tls-cert-file", ("secure-metrics", "secure-health")),
    ("tls-private-key-file", ("tls-cert-file",)),
    ("client-ca-file", ("secure-metrics",)),
    ("token-audiences", ("secure-metrics",)),
)
"""Flags that mean nothing without one of these others."""


def _check_range(minimum: Any, maximum: Any, rule: str) -> Check:
    """Check that minimum <= value <= maximum; None means no maximum."""

    def check(value: Any) -> Iterable[tuple[object, str]]:
        if value < minimum or (maximum is not None and value > maximum):
            yield value, rule

    return check


def _check_scheduler(name: str) -> Iterator[tuple[object, str]]:
    if name not in OWN_SCHEDULERS:
        yield name, f"must be one of {', '.join(OWN_SCHEDULERS)}"


def _check_cidrs(texts: Iterable[str]) -> Iterator[tuple[object, str]]:
    for text in texts:
        if cidr_from_text(text) is None:
            yield text, "must be a valid CIDR"


def _check_probe_addresses(texts: Iterable[str]) -> Iterator[tuple[object, str]]:
    seen: set[Family] = set()
    for text in texts:
        address = address_from_text(text)
        if address is None:
            yield text, "must be an IP address"
            continue
        reason = find_unusable_reason(address)
        if reason is not None:
            yield text, f"must be an address that a Service may have; it is {reason}"
        if family_of(address) in seen:
            yield text, f"only one {family_of(address).value} address is possible"
        seen.add(family_of(address))


def _check_secure_metrics(text: str) -> Iterator[tuple[object, str]]:
    if text not in ("", *SECURE_METRICS):
        yield text, f"must be one of {', '.join(SECURE_METRICS)}, or empty"


def find_flag_conflicts(given: Mapping[str, Any]) -> Iterator[tuple[str, object, str]]:
    """Yield each flag that others make impossible or useless, its value and the rule that it breaks."""
    for name in ("secure-metrics", "node-condition", "remove-startup-taint"):
        if given.get(name) and given.get("manifests"):
            yield name, given[name], "needs an API server, which --manifests replaces"
    for name, needed in _NEEDS:
        if given.get(name) and not any(given.get(other) for other in needed):
            yield name, given[name], f"needs {' or '.join(f'--{other}' for other in needed)}"


OWN_FLAGS: tuple[Flag, ...] = group_flags(
    "Pointsman",
    option_flag(
        "manifests",
        "manifests",
        help="Take Services and EndpointSlices from this file or directory, watched, instead of an API server.",
    ),
    option_flag("check", "once.check", help="Validate, print the effective configuration and exit."),
    Flag(
        "strict",
        Kind.BOOL,
        default="false",
        help="Unknown or repeated fields of the configuration file, and flags that it makes ineffective, are errors.",
    ),
    option_flag("service-metrics", "service_metrics", help="Serve traffic counters per Service."),
    option_flag(
        "service-metrics-limit",
        "service_metrics_limit",
        check=_check_range(1, None, "must be greater than 0"),
        help="Services counted at most with --service-metrics.",
    ),
    option_flag(
        "control-socket",
        "paths.control_socket_flag",
        kind=Kind.STRING,
        is_path=True,
        default=str(CONTROL_SOCKET),
        help="Socket on which status, explain and verify ask the running proxy; follows --state-dir. Empty: none.",
    ),
    option_flag(
        "state-dir",
        "paths.state_dir",
        help="Directory for what must survive a restart, such as sysctls to restore.",
    ),
    option_flag(
        "host-root",
        "paths.host_root",
        help="Directory below which the host's /proc/sys and /sys can be written, for an init container that is not privileged.",
    ),
    option_flag(
        "wait-for-instance",
        "wait_for_instance",
        help="When another instance serves this node, take over when it ends instead of exiting.",
    ),
    option_flag(
        "drain-period",
        "drain_period",
        check=_check_range(timedelta(0), None, "must be 0 or more"),
        help="After SIGTERM, fail /healthz and the health check node ports for this long while it keeps syncing, then end; a second signal ends at once.",
    ),
    option_flag(
        "probe-addresses",
        "probe_addresses",
        check=_check_probe_addresses,
        help="Addresses that no Service has, at most one per IP family: every few seconds a connection through each of them proves that this node's packets are translated (/readyz, status, a metric). Empty: no probe.",
    ),
    option_flag(
        "node-condition",
        "node_condition",
        help="Keep the condition pointsman.dev/ServicesReady on the Node: what /readyz answers. Needs the permission to patch nodes/status.",
    ),
    option_flag(
        "remove-startup-taint",
        "remove_startup_taint",
        help="Remove the taint pointsman.dev/services-not-ready from the Node after the first sync of every IP family and, with --probe-addresses, the first successful probe. Needs the permission to patch nodes.",
    ),
    option_flag(
        "external-ip-allow-cidrs",
        "external_ip_allow_cidrs",
        check=_check_cidrs,
        help="If set, external and load-balancer IPs outside these ranges are not programmed.",
    ),
    option_flag(
        "default-scheduler",
        "balancing.scheduler",
        kind=Kind.STRING,
        choices=tuple(OWN_SCHEDULERS),
        default="random",
        convert=lambda name: OWN_SCHEDULERS.get(name, Scheduler.RANDOM),
        check=_check_scheduler,
        help="How Services without the annotation pointsman.dev/scheduler are balanced: random, weighted, source-hash, source-port-hash or least-connections. In ipvs mode --ipvs-scheduler decides.",
    ),
    option_flag(
        "default-slow-start",
        "balancing.slow_start",
        kind=Kind.DURATION,
        default="0s",
        convert=lambda period: round(period.total_seconds()),
        check=_check_range(
            timedelta(0),
            timedelta(seconds=MAX_SLOW_START_SECONDS),
            f"must be from 0 to {MAX_SLOW_START_SECONDS}s",
        ),
        help="How long a new endpoint takes to its full share where the annotation pointsman.dev/slow-start does not say.",
    ),
    option_flag(
        "source-hash-seed",
        "balancing.seed",
        check=_check_range(1, None, "must be greater than 0"),
        help="Goes into every source hash; must be the same on all nodes for them to choose the same endpoint for a client.",
    ),
    option_flag(
        "source-hash-slots",
        "balancing.hash_slots",
        check=_check_range(*HASH_SLOTS_RANGE, "must be from {} to {}".format(*HASH_SLOTS_RANGE)),
        help="Slots of a Service with a source hash, unless the annotation pointsman.dev/hash-slots says; more are finer and cost memory.",
    ),
    option_flag(
        "reset-gone",
        "balancing.reset_gone",
        help="Reset TCP connections to endpoints that have left their Service, unless its annotation pointsman.dev/reset-gone says otherwise.",
    ),
    option_flag(
        "dns-udp-timeout",
        "balancing.dns_timeout",
        kind=Kind.DURATION,
        default="0s",
        convert=lambda period: round(period.total_seconds()),
        check=_check_range(
            timedelta(0),
            timedelta(seconds=MAX_UDP_TIMEOUT_SECONDS),
            f"must be from 0 to {MAX_UDP_TIMEOUT_SECONDS}s",
        ),
        help="Connection tracking forgets idle flows to UDP port 53 of Services after this time where the annotation pointsman.dev/udp-timeout does not say; 0 leaves them to the kernel. nftables mode only.",
    ),
    option_flag(
        "secure-metrics",
        "serving.metrics",
        choices=SECURE_METRICS,
        check=_check_secure_metrics,
        help="Serve the metrics port over TLS, to clients with a certificate or a bearer token that the API server allows to get the path: with remote, clients on loopback need none; with all, they do. Empty: plain HTTP without authentication.",
    ),
    option_flag(
        "secure-health",
        "serving.health",
        help="Serve the health port over TLS, without authentication; probes need the scheme HTTPS.",
    ),
    option_flag(
        "tls-cert-file",
        "serving.certificate",
        help="Certificate (PEM, with its chain) of the ports that serve TLS, read again when it changes. Empty: a self-signed one.",
    ),
    option_flag("tls-private-key-file", "serving.key", help="Private key of --tls-cert-file."),
    option_flag(
        "client-ca-file",
        "serving.client_ca",
        help="CA certificates: with --secure-metrics, a client certificate that one of them has signed identifies a user (common name) and its groups (organizations).",
    ),
    option_flag(
        "token-audiences",
        "serving.audiences",
        help="With --secure-metrics, bearer tokens must be meant for one of these audiences. Empty: for the API server.",
    ),
    works_with_file=True,
)
