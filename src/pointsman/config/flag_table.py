"""Every flag of kube-proxy with its default and the field it sets, and the few of our own.

Help text, the /flagz page, docs/flags.md and the rules of precedence all come from this one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pointsman.config.gates import gates_help
from pointsman.config.goflags import Flag, Kind
from pointsman.files import CONTROL_SOCKET, RUN_DIRECTORY

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  shown, never bound to
_START = "Start-up"
_API = "API server"
_SERVE = "Node and addresses"
_MODE = "Proxy mode"
_LOCAL = "Local traffic and node ports"
_SYSTEM = "System"
_LOG = "Logging"
_OWN = "Pointsman"


def _flags() -> Iterator[Flag]:
    yield from _start_flags()
    yield from _api_flags()
    yield from _address_flags()
    yield from _mode_flags()
    yield from _local_flags()
    yield from _system_flags()
    yield from _log_flags()
    yield from _own_flags()


def _start_flags() -> Iterator[Flag]:
    def flag(name: str, kind: Kind, text: str, default: str = "", shorthand: str = "") -> Flag:
        return Flag(
            name=name,
            kind=kind,
            help=text,
            group=_START,
            default=default,
            shorthand=shorthand,
            works_with_file=True,
        )

    yield flag(
        "config",
        Kind.STRING,
        "Configuration file. It is watched: a valid change is applied, an invalid one reported.",
    )
    yield flag("write-config-to", Kind.STRING, "Write the effective configuration to this file and exit.")
    yield flag("cleanup", Kind.BOOL, "Remove everything the proxy put into the kernel, then exit.", "false")
    yield flag(
        "init-only",
        Kind.BOOL,
        "Do the steps that need full root privileges, then exit; afterwards CAP_NET_ADMIN is enough.",
        "false",
    )
    yield flag(
        "version",
        Kind.VERSION,
        "--version and --version=raw print the version and exit; --version=vX.Y.Z sets the version reported to others.",
        "false",
    )
    yield flag("help", Kind.BOOL, "Print this help and exit.", "false", "h")


def _api_flags() -> Iterator[Flag]:
    def flag(name: str, kind: Kind, field: str, text: str, default: str = "") -> Flag:
        fields = (f"client_connection.{field}",) if field else ()
        return Flag(
            name=name,
            kind=kind,
            help=text,
            group=_API,
            default=default,
            fields=fields,
            works_with_file=not field,
        )

    yield flag(
        "kubeconfig",
        Kind.STRING,
        "kubeconfig",
        "kubeconfig file with the server and credentials; without it and --master, those of the pod.",
    )
    yield flag("master", Kind.STRING, "", "Address of the API server; wins over the one in the kubeconfig.")
    yield flag(
        "kube-api-content-type",
        Kind.STRING,
        "content_type",
        "Content type of requests; Pointsman always speaks JSON and only keeps the value.",
        "application/vnd.kubernetes.protobuf",
    )
    yield flag("kube-api-qps", Kind.FLOAT32, "qps", "Requests per second to the API server.", "5")
    yield flag(
        "kube-api-burst",
        Kind.INT32,
        "burst",
        "Requests to the API server that may exceed the rate for a moment.",
        "10",
    )


def _address_flags() -> Iterator[Flag]:
    def flag(name: str, kind: Kind, field: str, text: str, default: str = "", deprecated: str = "") -> Flag:
        return Flag(
            name=name,
            kind=kind,
            help=text,
            group=_SERVE,
            default=default,
            fields=(field,) if field else (),
            deprecated=deprecated,
            works_with_file=name == "hostname-override",
        )

    yield flag(
        "hostname-override",
        Kind.STRING,
        "hostname_override",
        "Name of this node's Node object, instead of the host name.",
    )
    yield flag(
        "bind-address",
        Kind.IP,
        "bind_address",
        "The node's primary address, if it is not the one of the Node object. No socket binds to it.",
        _EVERY_ADDRESS,
    )
    yield flag(
        "healthz-bind-address",
        Kind.IP_PORT,
        "healthz_bind_address",
        "Address of the health server ([::]:10256 when --bind-address is IPv6).",
        "0.0.0.0:10256",
    )
    yield flag(
        "metrics-bind-address",
        Kind.IP_PORT,
        "metrics_bind_address",
        "Address of the metrics server ([::1]:10249 when --bind-address is IPv6). Empty: do not serve.",
        "127.0.0.1:10249",
    )
    yield flag(
        "healthz-port",
        Kind.INT32,
        "",
        "Port of the health server, 0 to disable.",
        "10256",
        "use --healthz-bind-address instead",
    )
    yield flag(
        "metrics-port",
        Kind.INT32,
        "",
        "Port of the metrics server, 0 to disable.",
        "10249",
        "use --metrics-bind-address instead",
    )
    yield flag(
        "bind-address-hard-fail",
        Kind.BOOL,
        "bind_address_hard_fail",
        "Exit when a port cannot be bound, instead of trying again.",
        "false",
    )
    yield flag(
        "profiling",
        Kind.BOOL,
        "enable_profiling",
        "Serve profiles under /debug on the metrics server.",
        "false",
    )
    yield flag(
        "show-hidden-metrics-for-version",
        Kind.STRING,
        "show_hidden_metrics_for_version",
        "Show metrics hidden since this version; only the previous minor version, such as 1.36, is accepted.",
    )


def _mode_flags() -> Iterator[Flag]:
    def flag(name: str, kind: Kind, fields: str, text: str, default: str = "") -> Flag:
        return Flag(
            name=name, kind=kind, help=text, group=_MODE, default=default, fields=tuple(fields.split())
        )

    yield flag(
        "proxy-mode",
        Kind.STRING,
        "mode",
        "iptables, ipvs or nftables. Unset: iptables as kube-proxy, nftables as `pointsman run` where the kernel can.",
    )
    yield flag(
        "masquerade-all",
        Kind.BOOL,
        "iptables.masquerade_all nftables.masquerade_all",
        "Masquerade all traffic sent to cluster IPs.",
        "false",
    )
    yield flag(
        "iptables-masquerade-bit",
        Kind.INT32,
        "iptables.masquerade_bit",
        "Bit of the packet mark that asks for masquerading (iptables and ipvs modes), 0 to 31.",
        "14",
    )
    yield flag(
        "iptables-localhost-nodeports",
        Kind.BOOL,
        "iptables.localhost_node_ports",
        "Answer node ports on 127.0.0.1 (iptables mode, IPv4).",
        "true",
    )
    yield flag(
        "iptables-sync-period",
        Kind.DURATION,
        "iptables.sync_period nftables.sync_period",
        "Time between periodic checks and clean-ups (iptables and nftables modes); more than 0.",
        "30s",
    )
    yield flag(
        "iptables-min-sync-period",
        Kind.DURATION,
        "iptables.min_sync_period nftables.min_sync_period",
        "Least time between two syncs (iptables and nftables modes); 0 syncs at once.",
        "1s",
    )
    yield flag(
        "ipvs-sync-period",
        Kind.DURATION,
        "ipvs.sync_period",
        "Time between periodic checks and clean-ups (ipvs mode); more than 0.",
        "30s",
    )
    yield flag(
        "ipvs-min-sync-period",
        Kind.DURATION,
        "ipvs.min_sync_period",
        "Least time between two syncs (ipvs mode); 0 syncs at once.",
        "1s",
    )
    yield flag("ipvs-scheduler", Kind.STRING, "ipvs.scheduler", "IPVS scheduler; unset: rr.")
    yield flag(
        "ipvs-exclude-cidrs",
        Kind.LIST,
        "ipvs.exclude_cidrs",
        "Ranges of virtual servers that clean-up must not touch.",
    )
    yield flag(
        "ipvs-strict-arp", Kind.BOOL, "ipvs.strict_arp", "Set arp_ignore to 1 and arp_announce to 2.", "false"
    )
    yield flag(
        "ipvs-tcp-timeout",
        Kind.DURATION,
        "ipvs.tcp_timeout",
        "IPVS timeout of idle TCP connections, 0 to leave it.",
        "0s",
    )
    yield flag(
        "ipvs-tcpfin-timeout",
        Kind.DURATION,
        "ipvs.tcp_fin_timeout",
        "IPVS timeout of TCP connections after a FIN, 0 to leave it.",
        "0s",
    )
    yield flag(
        "ipvs-udp-timeout", Kind.DURATION, "ipvs.udp_timeout", "IPVS timeout of UDP, 0 to leave it.", "0s"
    )


def _local_flags() -> Iterator[Flag]:
    def flag(name: str, kind: Kind, field: str, text: str) -> Flag:
        return Flag(name=name, kind=kind, help=text, group=_LOCAL, fields=(field,))

    yield flag(
        "detect-local-mode",
        Kind.STRING,
        "detect_local_mode",
        "How local pods are recognised: ClusterCIDR (default), NodeCIDR, BridgeInterface or InterfaceNamePrefix.",
    )
    yield flag(
        "cluster-cidr",
        Kind.STRING,
        "cluster_cidr",
        "Range of the pods, or a dual-stack pair separated by a comma (ClusterCIDR mode).",
    )
    yield flag(
        "pod-bridge-interface",
        Kind.STRING,
        "detect_local.bridge_interface",
        "Bridge that local pods are behind (BridgeInterface mode).",
    )
    yield flag(
        "pod-interface-name-prefix",
        Kind.STRING,
        "detect_local.interface_name_prefix",
        "Start of the names of local pods' interfaces (InterfaceNamePrefix mode).",
    )
    yield flag(
        "nodeport-addresses",
        Kind.LIST,
        "node_port_addresses",
        "Where node ports answer: ranges and the words primary, localhost, all. Unset: all (iptables, ipvs), primary (nftables).",
    )


def _system_flags() -> Iterator[Flag]:
    def flag(name: str, kind: Kind, field: str, text: str, default: str = "") -> Flag:
        return Flag(name=name, kind=kind, help=text, group=_SYSTEM, default=default, fields=(field,))

    yield flag(
        "oom-score-adj", Kind.INT32, "oom_score_adj", "oom-score-adj of this process, -1000 to 1000.", "-999"
    )
    yield flag(
        "conntrack-max-per-core",
        Kind.INT32,
        "conntrack.max_per_core",
        "Connections tracked per CPU core at most; 0 leaves the limit and ignores --conntrack-min.",
        "32768",
    )
    yield flag(
        "conntrack-min",
        Kind.INT32,
        "conntrack.min",
        "Connections tracked at least, whatever --conntrack-max-per-core gives.",
        "131072",
    )
    yield flag(
        "conntrack-tcp-timeout-established",
        Kind.DURATION,
        "conntrack.tcp_established_timeout",
        "Timeout of established TCP connections, 0 to leave it.",
        "24h0m0s",
    )
    yield flag(
        "conntrack-tcp-timeout-close-wait",
        Kind.DURATION,
        "conntrack.tcp_close_wait_timeout",
        "Timeout of TCP connections in CLOSE_WAIT, 0 to leave it.",
        "1h0m0s",
    )
    yield flag(
        "conntrack-tcp-be-liberal",
        Kind.BOOL,
        "conntrack.tcp_be_liberal",
        "Set nf_conntrack_tcp_be_liberal to 1.",
        "false",
    )
    yield flag(
        "conntrack-udp-timeout",
        Kind.DURATION,
        "conntrack.udp_timeout",
        "Timeout of unanswered UDP, 0 to leave it.",
        "0s",
    )
    yield flag(
        "conntrack-udp-timeout-stream",
        Kind.DURATION,
        "conntrack.udp_stream_timeout",
        "Timeout of answered UDP, 0 to leave it.",
        "0s",
    )
    yield flag(
        "config-sync-period",
        Kind.DURATION,
        "config_sync_period",
        "Time after which all objects from the API server are looked at again; more than 0.",
        "15m0s",
    )
    yield flag(
        "feature-gates",
        Kind.SWITCHES,
        "feature_gates",
        "Feature gates as Name=true|false pairs. Options are:\n" + gates_help(),
    )


def _log_flags() -> Iterator[Flag]:
    def flag(name: str, kind: Kind, field: str, text: str, default: str = "", shorthand: str = "") -> Flag:
        return Flag(
            name=name,
            kind=kind,
            help=text,
            group=_LOG,
            default=default,
            fields=(f"logging.{field}",),
            shorthand=shorthand,
            works_with_file=True,
        )

    yield flag("v", Kind.UINT32, "verbosity", "Verbosity of the log.", "0", "v")
    yield flag(
        "vmodule",
        Kind.VMODULE,
        "vmodule",
        "Verbosity of single source files, such as listwatch=6 (text format).",
    )
    yield flag("logging-format", Kind.STRING, "format", "Log format: text or json.", "text")
    yield flag(
        "log-flush-frequency",
        Kind.DURATION,
        "flush_frequency",
        "Longest time that buffered log lines wait.",
        "5s",
    )
    for form in ("text", "json"):
        yield flag(
            f"log-{form}-split-stream",
            Kind.BOOL,
            f"options.{form}.split_stream",
            f"[Alpha] In {form} format, errors go to stderr and the rest to stdout. Needs the feature gate LoggingAlphaOptions.",
            "false",
        )
        yield flag(
            f"log-{form}-info-buffer-size",
            Kind.QUANTITY,
            f"options.{form}.info_buffer_size",
            f"[Alpha] In {form} format with split streams, buffer so many bytes of stdout (512, 1K, 2Ki, ...). Needs the feature gate LoggingAlphaOptions.",
            "0",
        )


def _own_flags() -> Iterator[Flag]:
    def flag(name: str, kind: Kind, text: str, default: str = "") -> Flag:
        return Flag(name=name, kind=kind, help=text, group=_OWN, default=default, works_with_file=True)

    yield flag(
        "manifests",
        Kind.STRING,
        "Take Services and EndpointSlices from this file or directory, watched, instead of an API server.",
    )
    yield flag("check", Kind.BOOL, "Validate, print the effective configuration and exit.", "false")
    yield flag("service-metrics", Kind.BOOL, "Serve traffic counters per Service.", "false")
    yield flag(
        "service-metrics-limit", Kind.INT32, "Services counted at most with --service-metrics.", "1000"
    )
    yield flag(
        "control-socket",
        Kind.STRING,
        "Socket on which status, explain and verify ask the running proxy; follows --state-dir. Empty: none.",
        str(CONTROL_SOCKET),
    )
    yield flag(
        "state-dir",
        Kind.STRING,
        "Directory for what must survive a restart, such as sysctls to restore.",
        str(RUN_DIRECTORY),
    )
    yield flag(
        "external-ip-allow-cidrs",
        Kind.LIST,
        "If set, external and load-balancer IPs outside these ranges are not programmed.",
    )


FLAGS: tuple[Flag, ...] = tuple(_flags())
BY_NAME: Mapping[str, Flag] = {flag.name: flag for flag in FLAGS}
