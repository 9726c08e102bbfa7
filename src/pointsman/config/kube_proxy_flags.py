"""Every flag of kube-proxy with its default and the fields it sets."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman import KUBERNETES_MINOR
from pointsman.config.gates import render_gates
from pointsman.config.goflags import Flag, Kind, config_flag, group_flags, option_flag
from pointsman.config.mode_table import MODES


def _log_options(form: str) -> Iterator[Flag]:
    needs = "Needs the feature gate LoggingAlphaOptions."
    yield config_flag(
        f"log-{form}-split-stream",
        f"logging.options.{form}.split_stream",
        help=f"[Alpha] In {form} format, errors go to stderr and the rest to stdout. {needs}",
    )
    yield config_flag(
        f"log-{form}-info-buffer-size",
        f"logging.options.{form}.info_buffer_size",
        help=f"[Alpha] In {form} format with split streams, buffer so many bytes of stdout (512, 1K, 2Ki, ...). {needs}",
    )


KUBE_PROXY_FLAGS: tuple[Flag, ...] = (
    *group_flags(
        "Start-up",
        option_flag(
            "config",
            "config_file",
            help="Configuration file. It is watched: a valid change is applied, an invalid one reported.",
        ),
        option_flag(
            "write-config-to",
            "once.write_config_to",
            help="Write the effective configuration to this file and exit.",
        ),
        option_flag(
            "cleanup", "once.cleanup", help="Remove everything the proxy put into the kernel, then exit."
        ),
        option_flag(
            "init-only",
            "once.init_only",
            help="Do the steps that need full root privileges, then exit; afterwards CAP_NET_ADMIN is enough.",
        ),
        option_flag(
            "version",
            "once.version",
            kind=Kind.VERSION,
            default="false",
            convert=lambda text: text if text in ("true", "raw") else "",
            help="--version and --version=raw print the version and exit; --version=vX.Y.Z is accepted and ignored.",
        ),
        option_flag("help", "once.help", shorthand="h", help="Print this help and exit."),
        works_with_file=True,
    ),
    *group_flags(
        "API server",
        config_flag(
            "kubeconfig",
            "client_connection.kubeconfig",
            is_path=True,
            help="kubeconfig file with the server and credentials; without it and --master, those of the pod.",
        ),
        option_flag(
            "master",
            "master",
            works_with_file=True,
            help="Address of the API server; wins over the one in the kubeconfig. In a pod without one, the pod's token and CA are used there.",
        ),
        config_flag(
            "kube-api-content-type",
            "client_connection.content_type",
            help="Format to ask the API server for: protobuf, with JSON where it has none, or application/json.",
        ),
        config_flag("kube-api-qps", "client_connection.qps", help="Requests per second to the API server."),
        config_flag(
            "kube-api-burst",
            "client_connection.burst",
            help="Requests to the API server that may exceed the rate for a moment.",
        ),
    ),
    *group_flags(
        "Node and addresses",
        config_flag(
            "hostname-override",
            "hostname_override",
            works_with_file=True,
            help="Name of this node's Node object, instead of the host name.",
        ),
        config_flag(
            "bind-address",
            "bind_address",
            kind=Kind.IP,
            help="The node's primary address, if it is not the one of the Node object. No socket binds to it.",
        ),
        config_flag(
            "healthz-bind-address",
            "healthz_bind_address",
            kind=Kind.IP_PORT,
            help="Address of the health server ([::]:10256 when --bind-address is IPv6).",
        ),
        config_flag(
            "metrics-bind-address",
            "metrics_bind_address",
            kind=Kind.IP_PORT,
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
        config_flag(
            "bind-address-hard-fail",
            "bind_address_hard_fail",
            help="Exit when a port cannot be bound, instead of trying again.",
        ),
        config_flag(
            "profiling", "enable_profiling", help="Serve profiles under /debug on the metrics server."
        ),
        config_flag(
            "show-hidden-metrics-for-version",
            "show_hidden_metrics_for_version",
            help=f"Show metrics hidden since this version; only the previous minor version, 1.{KUBERNETES_MINOR - 1}, is accepted.",
        ),
    ),
    *group_flags(
        "Proxy mode",
        config_flag(
            "proxy-mode",
            "mode",
            choices=tuple(reversed(MODES)),
            alias="mode",
            help="iptables, ipvs or nftables. Unset: iptables as kube-proxy, nftables as `pointsman run` where the kernel can.",
        ),
        config_flag(
            "masquerade-all",
            "iptables.masquerade_all",
            "nftables.masquerade_all",
            help="Masquerade all traffic sent to cluster IPs.",
        ),
        config_flag(
            "iptables-masquerade-bit",
            "iptables.masquerade_bit",
            help="Bit of the packet mark that asks for masquerading (iptables and ipvs modes), 0 to 31.",
        ),
        config_flag(
            "iptables-localhost-nodeports",
            "iptables.localhost_node_ports",
            help="Answer node ports on 127.0.0.1 (iptables mode, IPv4).",
        ),
        config_flag(
            "iptables-sync-period",
            "iptables.sync_period",
            "nftables.sync_period",
            help="Time between periodic checks and clean-ups (iptables and nftables modes); more than 0.",
        ),
        config_flag(
            "iptables-min-sync-period",
            "iptables.min_sync_period",
            "nftables.min_sync_period",
            help="Least time between two syncs (iptables and nftables modes); 0 chooses it by their cost.",
        ),
        config_flag(
            "ipvs-sync-period",
            "ipvs.sync_period",
            help="Time between periodic checks and clean-ups (ipvs mode); more than 0.",
        ),
        config_flag(
            "ipvs-min-sync-period",
            "ipvs.min_sync_period",
            help="Least time between two syncs (ipvs mode); 0 chooses it by their cost.",
        ),
        config_flag("ipvs-scheduler", "ipvs.scheduler", help="IPVS scheduler; unset: rr."),
        config_flag(
            "ipvs-exclude-cidrs",
            "ipvs.exclude_cidrs",
            help="Ranges of virtual servers that belong to other programs: only `pointsman cleanup` removes them.",
        ),
        config_flag("ipvs-strict-arp", "ipvs.strict_arp", help="Set arp_ignore to 1 and arp_announce to 2."),
        config_flag(
            "ipvs-tcp-timeout",
            "ipvs.tcp_timeout",
            help="IPVS timeout of idle TCP connections, 0 to leave it.",
        ),
        config_flag(
            "ipvs-tcpfin-timeout",
            "ipvs.tcp_fin_timeout",
            help="IPVS timeout of TCP connections after a FIN, 0 to leave it.",
        ),
        config_flag("ipvs-udp-timeout", "ipvs.udp_timeout", help="IPVS timeout of UDP, 0 to leave it."),
    ),
    *group_flags(
        "Local traffic and node ports",
        config_flag(
            "detect-local-mode",
            "detect_local_mode",
            help="How local pods are recognised: ClusterCIDR (default), NodeCIDR, BridgeInterface or InterfaceNamePrefix.",
        ),
        config_flag(
            "cluster-cidr",
            "cluster_cidr",
            help="Range of the pods, or a dual-stack pair separated by a comma (ClusterCIDR mode).",
        ),
        config_flag(
            "pod-bridge-interface",
            "detect_local.bridge_interface",
            help="Bridge that local pods are behind (BridgeInterface mode).",
        ),
        config_flag(
            "pod-interface-name-prefix",
            "detect_local.interface_name_prefix",
            help="Start of the names of local pods' interfaces (InterfaceNamePrefix mode).",
        ),
        config_flag(
            "nodeport-addresses",
            "node_port_addresses",
            help="Where node ports answer: ranges, or primary, localhost, all. Unset: all (iptables, ipvs), primary (nftables).",
        ),
    ),
    *group_flags(
        "System",
        config_flag("oom-score-adj", "oom_score_adj", help="oom-score-adj of this process, -1000 to 1000."),
        config_flag(
            "conntrack-max-per-core",
            "conntrack.max_per_core",
            help="Connections tracked per CPU core at most; 0 leaves the limit and ignores --conntrack-min.",
        ),
        config_flag(
            "conntrack-min",
            "conntrack.min",
            help="Connections tracked at least, whatever --conntrack-max-per-core gives.",
        ),
        config_flag(
            "conntrack-tcp-timeout-established",
            "conntrack.tcp_established_timeout",
            help="Timeout of established TCP connections, 0 to leave it.",
        ),
        config_flag(
            "conntrack-tcp-timeout-close-wait",
            "conntrack.tcp_close_wait_timeout",
            help="Timeout of TCP connections in CLOSE_WAIT, 0 to leave it.",
        ),
        config_flag(
            "conntrack-tcp-be-liberal",
            "conntrack.tcp_be_liberal",
            help="Set nf_conntrack_tcp_be_liberal to 1.",
        ),
        config_flag(
            "conntrack-udp-timeout", "conntrack.udp_timeout", help="Timeout of unanswered UDP, 0 to leave it."
        ),
        config_flag(
            "conntrack-udp-timeout-stream",
            "conntrack.udp_stream_timeout",
            help="Timeout of answered UDP, 0 to leave it.",
        ),
        config_flag(
            "config-sync-period",
            "config_sync_period",
            help="Accepted without effect: objects that did not change change nothing. More than 0.",
        ),
        config_flag(
            "feature-gates",
            "feature_gates",
            help="Feature gates as Name=true|false pairs. Options are:\n" + render_gates(),
        ),
    ),
    *group_flags(
        "Logging",
        config_flag("v", "logging.verbosity", shorthand="v", help="Verbosity of the log."),
        config_flag(
            "vmodule",
            "logging.vmodule",
            help="Verbosity of single source files, such as watch=6 (text format).",
        ),
        config_flag(
            "logging-format", "logging.format", choices=("text", "json"), help="Log format: text or json."
        ),
        config_flag(
            "log-flush-frequency",
            "logging.flush_frequency",
            help="Longest time that buffered log lines wait.",
        ),
        *_log_options("text"),
        *_log_options("json"),
        works_with_file=True,
    ),
)
