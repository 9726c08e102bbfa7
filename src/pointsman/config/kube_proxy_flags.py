"""Every flag of kube-proxy with its default and the fields it sets."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman import KUBERNETES_MINOR
from pointsman.config.gates import render_gates
from pointsman.config.goflags import Flag, Kind, group_flags, path_or_none
from pointsman.config.mode_table import MODES

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  shown, never bound to


def _log_options(form: str) -> Iterator[Flag]:
    needs = "Needs the feature gate LoggingAlphaOptions."
    yield Flag(
        f"log-{form}-split-stream",
        Kind.BOOL,
        fields=(f"logging.options.{form}.split_stream",),
        help=f"[Alpha] In {form} format, errors go to stderr and the rest to stdout. {needs}",
    )
    yield Flag(
        f"log-{form}-info-buffer-size",
        Kind.QUANTITY,
        default="0",
        fields=(f"logging.options.{form}.info_buffer_size",),
        help=f"[Alpha] In {form} format with split streams, buffer so many bytes of stdout (512, 1K, 2Ki, ...). {needs}",
    )


KUBE_PROXY_FLAGS: tuple[Flag, ...] = (
    *group_flags(
        "Start-up",
        Flag(
            "config",
            Kind.STRING,
            is_path=True,
            option="config_file",
            convert=path_or_none,
            help="Configuration file. It is watched: a valid change is applied, an invalid one reported.",
        ),
        Flag(
            "write-config-to",
            Kind.STRING,
            is_path=True,
            option="once.write_config_to",
            convert=path_or_none,
            help="Write the effective configuration to this file and exit.",
        ),
        Flag(
            "cleanup",
            Kind.BOOL,
            option="once.cleanup",
            help="Remove everything the proxy put into the kernel, then exit.",
        ),
        Flag(
            "init-only",
            Kind.BOOL,
            option="once.init_only",
            help="Do the steps that need full root privileges, then exit; afterwards CAP_NET_ADMIN is enough.",
        ),
        Flag(
            "version",
            Kind.VERSION,
            default="false",
            option="once.version",
            convert=lambda text: text if text in ("true", "raw") else "",
            help="--version and --version=raw print the version and exit; --version=vX.Y.Z is accepted and ignored.",
        ),
        Flag("help", Kind.BOOL, shorthand="h", option="once.help", help="Print this help and exit."),
        works_with_file=True,
    ),
    *group_flags(
        "API server",
        Flag(
            "kubeconfig",
            Kind.STRING,
            is_path=True,
            fields=("client_connection.kubeconfig",),
            help="kubeconfig file with the server and credentials; without it and --master, those of the pod.",
        ),
        Flag(
            "master",
            Kind.STRING,
            works_with_file=True,
            option="master",
            help="Address of the API server; wins over the one in the kubeconfig. In a pod without one, the pod's token and CA are used there.",
        ),
        Flag(
            "kube-api-content-type",
            Kind.STRING,
            default="application/vnd.kubernetes.protobuf",
            fields=("client_connection.content_type",),
            help="Format to ask the API server for: protobuf, with JSON where it has none, or application/json.",
        ),
        Flag(
            "kube-api-qps",
            Kind.FLOAT32,
            default="5",
            fields=("client_connection.qps",),
            help="Requests per second to the API server.",
        ),
        Flag(
            "kube-api-burst",
            Kind.INT32,
            default="10",
            fields=("client_connection.burst",),
            help="Requests to the API server that may exceed the rate for a moment.",
        ),
    ),
    *group_flags(
        "Node and addresses",
        Flag(
            "hostname-override",
            Kind.STRING,
            fields=("hostname_override",),
            works_with_file=True,
            help="Name of this node's Node object, instead of the host name.",
        ),
        Flag(
            "bind-address",
            Kind.IP,
            default=_EVERY_ADDRESS,
            fields=("bind_address",),
            help="The node's primary address, if it is not the one of the Node object. No socket binds to it.",
        ),
        Flag(
            "healthz-bind-address",
            Kind.IP_PORT,
            default="0.0.0.0:10256",
            fields=("healthz_bind_address",),
            help="Address of the health server ([::]:10256 when --bind-address is IPv6).",
        ),
        Flag(
            "metrics-bind-address",
            Kind.IP_PORT,
            default="127.0.0.1:10249",
            fields=("metrics_bind_address",),
            help="Address of the metrics server ([::1]:10249 when --bind-address is IPv6). Empty: do not serve.",
        ),
        Flag(
            "healthz-port",
            Kind.INT32,
            default="10256",
            deprecated="use --healthz-bind-address instead",
            help="Port of the health server, 0 to disable.",
        ),
        Flag(
            "metrics-port",
            Kind.INT32,
            default="10249",
            deprecated="use --metrics-bind-address instead",
            help="Port of the metrics server, 0 to disable.",
        ),
        Flag(
            "bind-address-hard-fail",
            Kind.BOOL,
            fields=("bind_address_hard_fail",),
            help="Exit when a port cannot be bound, instead of trying again.",
        ),
        Flag(
            "profiling",
            Kind.BOOL,
            fields=("enable_profiling",),
            help="Serve profiles under /debug on the metrics server.",
        ),
        Flag(
            "show-hidden-metrics-for-version",
            Kind.STRING,
            fields=("show_hidden_metrics_for_version",),
            help=f"Show metrics hidden since this version; only the previous minor version, 1.{KUBERNETES_MINOR - 1}, is accepted.",
        ),
    ),
    *group_flags(
        "Proxy mode",
        Flag(
            "proxy-mode",
            Kind.STRING,
            choices=tuple(reversed(MODES)),
            alias="mode",
            fields=("mode",),
            help="iptables, ipvs or nftables. Unset: iptables as kube-proxy, nftables as `pointsman run` where the kernel can.",
        ),
        Flag(
            "masquerade-all",
            Kind.BOOL,
            fields=("iptables.masquerade_all", "nftables.masquerade_all"),
            help="Masquerade all traffic sent to cluster IPs.",
        ),
        Flag(
            "iptables-masquerade-bit",
            Kind.INT32,
            default="14",
            fields=("iptables.masquerade_bit",),
            help="Bit of the packet mark that asks for masquerading (iptables and ipvs modes), 0 to 31.",
        ),
        Flag(
            "iptables-localhost-nodeports",
            Kind.BOOL,
            default="true",
            fields=("iptables.localhost_node_ports",),
            help="Answer node ports on 127.0.0.1 (iptables mode, IPv4).",
        ),
        Flag(
            "iptables-sync-period",
            Kind.DURATION,
            default="30s",
            fields=("iptables.sync_period", "nftables.sync_period"),
            help="Time between periodic checks and clean-ups (iptables and nftables modes); more than 0.",
        ),
        Flag(
            "iptables-min-sync-period",
            Kind.DURATION,
            default="0s",
            fields=("iptables.min_sync_period", "nftables.min_sync_period"),
            help="Least time between two syncs (iptables and nftables modes); 0 chooses it by their cost.",
        ),
        Flag(
            "ipvs-sync-period",
            Kind.DURATION,
            default="30s",
            fields=("ipvs.sync_period",),
            help="Time between periodic checks and clean-ups (ipvs mode); more than 0.",
        ),
        Flag(
            "ipvs-min-sync-period",
            Kind.DURATION,
            default="0s",
            fields=("ipvs.min_sync_period",),
            help="Least time between two syncs (ipvs mode); 0 chooses it by their cost.",
        ),
        Flag("ipvs-scheduler", Kind.STRING, fields=("ipvs.scheduler",), help="IPVS scheduler; unset: rr."),
        Flag(
            "ipvs-exclude-cidrs",
            Kind.LIST,
            fields=("ipvs.exclude_cidrs",),
            help="Ranges of virtual servers that clean-up must not touch.",
        ),
        Flag(
            "ipvs-strict-arp",
            Kind.BOOL,
            fields=("ipvs.strict_arp",),
            help="Set arp_ignore to 1 and arp_announce to 2.",
        ),
        Flag(
            "ipvs-tcp-timeout",
            Kind.DURATION,
            default="0s",
            fields=("ipvs.tcp_timeout",),
            help="IPVS timeout of idle TCP connections, 0 to leave it.",
        ),
        Flag(
            "ipvs-tcpfin-timeout",
            Kind.DURATION,
            default="0s",
            fields=("ipvs.tcp_fin_timeout",),
            help="IPVS timeout of TCP connections after a FIN, 0 to leave it.",
        ),
        Flag(
            "ipvs-udp-timeout",
            Kind.DURATION,
            default="0s",
            fields=("ipvs.udp_timeout",),
            help="IPVS timeout of UDP, 0 to leave it.",
        ),
    ),
    *group_flags(
        "Local traffic and node ports",
        Flag(
            "detect-local-mode",
            Kind.STRING,
            fields=("detect_local_mode",),
            help="How local pods are recognised: ClusterCIDR (default), NodeCIDR, BridgeInterface or InterfaceNamePrefix.",
        ),
        Flag(
            "cluster-cidr",
            Kind.STRING,
            fields=("cluster_cidr",),
            help="Range of the pods, or a dual-stack pair separated by a comma (ClusterCIDR mode).",
        ),
        Flag(
            "pod-bridge-interface",
            Kind.STRING,
            fields=("detect_local.bridge_interface",),
            help="Bridge that local pods are behind (BridgeInterface mode).",
        ),
        Flag(
            "pod-interface-name-prefix",
            Kind.STRING,
            fields=("detect_local.interface_name_prefix",),
            help="Start of the names of local pods' interfaces (InterfaceNamePrefix mode).",
        ),
        Flag(
            "nodeport-addresses",
            Kind.LIST,
            fields=("node_port_addresses",),
            help="Where node ports answer: ranges, or primary, localhost, all. Unset: all (iptables, ipvs), primary (nftables).",
        ),
    ),
    *group_flags(
        "System",
        Flag(
            "oom-score-adj",
            Kind.INT32,
            default="-999",
            fields=("oom_score_adj",),
            help="oom-score-adj of this process, -1000 to 1000.",
        ),
        Flag(
            "conntrack-max-per-core",
            Kind.INT32,
            default="32768",
            fields=("conntrack.max_per_core",),
            help="Connections tracked per CPU core at most; 0 leaves the limit and ignores --conntrack-min.",
        ),
        Flag(
            "conntrack-min",
            Kind.INT32,
            default="131072",
            fields=("conntrack.min",),
            help="Connections tracked at least, whatever --conntrack-max-per-core gives.",
        ),
        Flag(
            "conntrack-tcp-timeout-established",
            Kind.DURATION,
            default="24h0m0s",
            fields=("conntrack.tcp_established_timeout",),
            help="Timeout of established TCP connections, 0 to leave it.",
        ),
        Flag(
            "conntrack-tcp-timeout-close-wait",
            Kind.DURATION,
            default="1h0m0s",
            fields=("conntrack.tcp_close_wait_timeout",),
            help="Timeout of TCP connections in CLOSE_WAIT, 0 to leave it.",
        ),
        Flag(
            "conntrack-tcp-be-liberal",
            Kind.BOOL,
            fields=("conntrack.tcp_be_liberal",),
            help="Set nf_conntrack_tcp_be_liberal to 1.",
        ),
        Flag(
            "conntrack-udp-timeout",
            Kind.DURATION,
            default="0s",
            fields=("conntrack.udp_timeout",),
            help="Timeout of unanswered UDP, 0 to leave it.",
        ),
        Flag(
            "conntrack-udp-timeout-stream",
            Kind.DURATION,
            default="0s",
            fields=("conntrack.udp_stream_timeout",),
            help="Timeout of answered UDP, 0 to leave it.",
        ),
        Flag(
            "config-sync-period",
            Kind.DURATION,
            default="15m0s",
            fields=("config_sync_period",),
            help="Accepted without effect: objects that did not change change nothing. More than 0.",
        ),
        Flag(
            "feature-gates",
            Kind.SWITCHES,
            fields=("feature_gates",),
            help="Feature gates as Name=true|false pairs. Options are:\n" + render_gates(),
        ),
    ),
    *group_flags(
        "Logging",
        Flag(
            "v",
            Kind.UINT32,
            shorthand="v",
            default="0",
            fields=("logging.verbosity",),
            help="Verbosity of the log.",
        ),
        Flag(
            "vmodule",
            Kind.VMODULE,
            fields=("logging.vmodule",),
            help="Verbosity of single source files, such as watch=6 (text format).",
        ),
        Flag(
            "logging-format",
            Kind.STRING,
            choices=("text", "json"),
            default="text",
            fields=("logging.format",),
            help="Log format: text or json.",
        ),
        Flag(
            "log-flush-frequency",
            Kind.DURATION,
            default="5s",
            fields=("logging.flush_frequency",),
            help="Longest time that buffered log lines wait.",
        ),
        *_log_options("text"),
        *_log_options("json"),
        works_with_file=True,
    ),
)
