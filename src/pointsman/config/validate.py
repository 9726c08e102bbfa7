"""Every rule that a configuration must obey, checked together; each problem names the field path and the rule.

Paths use the names in the file (`KubeProxyConfiguration.conntrack.min`), where upstream mixes in its internal type
names, which do not appear in any file.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pointsman import KUBERNETES_MINOR
from pointsman.config.document import ProblemList
from pointsman.config.gates import FeatureGates, find_gate_problems
from pointsman.config.mode_table import IPTABLES, IPVS, MODES, find_mode_rows
from pointsman.config.types import Conntrack, KubeProxyConfiguration, Logging, OutputRouting
from pointsman.model.addresses import address_from_text, cidr_from_text, port_from_text, split_host_port

ROOT = "KubeProxyConfiguration"
LOCAL_MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")
NODE_PORT_KEYWORDS = ("primary", "localhost", "all")
PREVIOUS_MINOR = f"1.{KUBERNETES_MINOR - 1}"
"""The minor version before the one we follow; the only one hidden metrics can be shown for."""
_MAX_VERBOSITY = (1 << 31) - 1
_CIDR_EXAMPLE = "(e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"
_PAIR_EXAMPLE = "(e.g. 10.100.0.0/16,fde4:8dba:82e1::/48)"


def find_problems(config: KubeProxyConfiguration) -> list[str]:
    """Return every problem of a defaulted configuration; an empty list means that it can run."""
    problems = ProblemList()
    for problem in find_gate_problems(config.feature_gates):
        problems.add(f"{ROOT}.featureGates", config.feature_gates, problem)
    _check_mode(config, problems)
    _check_periods(config, problems)
    _check_addresses(config, problems)
    _check_local(config, problems)
    _check_conntrack(config.conntrack, problems)
    _check_limits(config, problems)
    _check_logging(config, problems)
    return problems.errors


def _check_mode(config: KubeProxyConfiguration, problems: ProblemList) -> None:
    gates = FeatureGates(config.feature_gates)
    modes = [name for name, row in MODES.items() if not row.gate or gates.enabled(row.gate)]
    if config.mode and config.mode not in modes:
        names = ", ".join(modes)
        problems.add(f"{ROOT}.mode", config.mode, f"must be {names} or blank (blank means the default mode)")
    for block in dict.fromkeys((IPTABLES, *(row.masquerade for row in find_mode_rows(config.mode)))):
        bit = getattr(config, block).masquerade_bit
        if not 0 <= bit <= 31:
            problems.add(f"{ROOT}.{block}.masqueradeBit", bit, "must be within the range [0, 31]")
    if config.mode == IPVS:
        for name, timeout in (
            ("tcpTimeout", config.ipvs.tcp_timeout),
            ("tcpFinTimeout", config.ipvs.tcp_fin_timeout),
            ("udpTimeout", config.ipvs.udp_timeout),
        ):
            _check_not_negative(f"{ROOT}.ipvs.{name}", timeout, problems)
        for index, text in enumerate(config.ipvs.exclude_cidrs):
            if cidr_from_text(text) is None:
                problems.add(f"{ROOT}.ipvs.excludeCIDRs[{index}]", text, "must be a valid CIDR")


def _check_periods(config: KubeProxyConfiguration, problems: ProblemList) -> None:
    """Check the block of the chosen mode only; without a mode either of the two defaults may be chosen."""
    _check_positive(f"{ROOT}.configSyncPeriod", config.config_sync_period, problems)
    for row in find_mode_rows(config.mode):
        block, path = getattr(config, row.periods), f"{ROOT}.{row.periods}"
        _check_positive(f"{path}.syncPeriod", block.sync_period, problems)
        _check_not_negative(f"{path}.minSyncPeriod", block.min_sync_period, problems)
        if block.min_sync_period > block.sync_period:
            rule = f"must be greater than or equal to {path}.minSyncPeriod"
            problems.add(f"{path}.syncPeriod", block.sync_period, rule)


def _check_addresses(config: KubeProxyConfiguration, problems: ProblemList) -> None:
    if address_from_text(config.bind_address) is None:
        rule = "not a valid textual representation of an IP address"
        problems.add(f"{ROOT}.bindAddress", config.bind_address, rule)
    for name, address in (
        ("healthzBindAddress", config.healthz_bind_address),
        ("metricsBindAddress", config.metrics_bind_address),
    ):
        if address:
            _check_ip_and_port(f"{ROOT}.{name}", address, problems)
    seen: set[str] = set()
    for index, text in enumerate(config.node_port_addresses):
        path = f"{ROOT}.nodePortAddresses[{index}]"
        if text in NODE_PORT_KEYWORDS:
            if text in seen:
                problems.errors.append(f'{path}: Duplicate value: "{text}"')
            seen.add(text)
        elif cidr_from_text(text) is None:
            rule = "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'"
            problems.add(path, text, rule)


def _check_ip_and_port(path: str, text: str, problems: ProblemList) -> None:
    parts = split_host_port(text)
    if parts is None:
        problems.add(path, text, "must be IP:port")
        return
    host, port = parts
    if address_from_text(host) is None:
        problems.add(path, host, "must be a valid IP")
    if not port_from_text(port):
        problems.add(path, port, "must be a valid port")


def _check_local(config: KubeProxyConfiguration, problems: ProblemList) -> None:
    mode = config.detect_local_mode
    if mode and mode not in LOCAL_MODES:
        supported = ", ".join(f'"{name}"' for name in LOCAL_MODES)
        problems.errors.append(
            f'{ROOT}.detectLocalMode: Unsupported value: "{mode}": supported values: {supported}, ""'
        )
    if mode == "BridgeInterface":
        _check_interface(
            f"{ROOT}.detectLocal.bridgeInterface", config.detect_local.bridge_interface, problems
        )
    if mode == "InterfaceNamePrefix":
        prefix = config.detect_local.interface_name_prefix
        _check_interface(f"{ROOT}.detectLocal.interfaceNamePrefix", prefix, problems)
    if mode in ("", "ClusterCIDR"):
        _check_cluster_cidrs(config.cluster_cidrs, config.cluster_cidr, problems)


def _check_interface(path: str, name: str, problems: ProblemList) -> None:
    """Check an interface name, which goes into rules: what no kernel allows in one is reported before any is written."""
    if not name:
        problems.add(path, name, "must not be empty")
    elif len(name.encode()) > 15 or not name.isprintable() or any(char in name for char in ' /"'):
        problems.add(
            path, name, "must be an interface name: at most 15 bytes, without spaces, quotes or slashes"
        )


def _check_cluster_cidrs(texts: Sequence[str], whole: str, problems: ProblemList) -> None:
    path = f"{ROOT}.clusterCIDR"
    pair_rule = f"must be either a single CIDR or a dual-stack pair of CIDRs {_PAIR_EXAMPLE}"
    if len(texts) > 2:
        problems.add(path, whole, pair_rule)
        return
    cidrs = [cidr_from_text(text) for text in texts]
    for text, cidr in zip(texts, cidrs, strict=True):
        if cidr is None:
            problems.add(path, text, f"must be a valid CIDR block {_CIDR_EXAMPLE}")
    families = [cidr.family for cidr in cidrs if cidr is not None]
    if len(families) == 2 and families[0] is families[1]:
        problems.add(path, whole, pair_rule)


def _check_conntrack(conntrack: Conntrack, problems: ProblemList) -> None:
    for name, count in (("maxPerCore", conntrack.max_per_core), ("min", conntrack.min)):
        if count < 0:
            problems.add(f"{ROOT}.conntrack.{name}", count, "must be greater than or equal to 0")
    for name, timeout in (
        ("tcpEstablishedTimeout", conntrack.tcp_established_timeout),
        ("tcpCloseWaitTimeout", conntrack.tcp_close_wait_timeout),
        ("udpTimeout", conntrack.udp_timeout),
        ("udpStreamTimeout", conntrack.udp_stream_timeout),
    ):
        _check_not_negative(f"{ROOT}.conntrack.{name}", timeout, problems)


def _check_limits(config: KubeProxyConfiguration, problems: ProblemList) -> None:
    if config.client_connection.burst < 0:
        rule = "must be greater than or equal to 0"
        problems.add(f"{ROOT}.clientConnection.burst", config.client_connection.burst, rule)
    if not -1000 <= config.oom_score_adj <= 1000:
        problems.add(f"{ROOT}.oomScoreAdj", config.oom_score_adj, "must be within the range [-1000, 1000]")
    version = config.show_hidden_metrics_for_version
    if version and version != PREVIOUS_MINOR:
        rule = f"must be omitted or have the value '{PREVIOUS_MINOR}'; only the previous minor version is allowed"
        problems.add(f"{ROOT}.showHiddenMetricsForVersion", version, rule)


def _check_logging(config: KubeProxyConfiguration, problems: ProblemList) -> None:
    logging: Logging = config.logging
    gates = FeatureGates(config.feature_gates)
    path = f"{ROOT}.logging"
    _check_positive(f"{path}.flushFrequency", logging.flush_frequency, problems)
    if logging.format not in ("text", "json"):
        problems.add(f"{path}.format", logging.format, "must be text or json")
    elif logging.format == "json" and not gates.enabled("LoggingBetaOptions"):
        problems.errors.append(
            f"{path}.format: Forbidden: log format json is disabled, see feature gate LoggingBetaOptions"
        )
    if logging.verbosity > _MAX_VERBOSITY:
        problems.add(f"{path}.verbosity", logging.verbosity, f"must be <= {_MAX_VERBOSITY}")
    if logging.vmodule and logging.format != "text":
        problems.errors.append(f"{path}.vmodule: Forbidden: only supported for text log format")
    for index, item in enumerate(logging.vmodule):
        if not item.file_pattern:
            problems.errors.append(f"{path}.vmodule[{index}]: Required value: file pattern must not be empty")
        elif "=" in item.file_pattern or "," in item.file_pattern:
            rule = "file pattern must not contain equal sign or comma"
            problems.add(f"{path}.vmodule[{index}]", item.file_pattern, rule)
        if item.verbosity > _MAX_VERBOSITY:
            problems.add(f"{path}.vmodule[{index}]", item.verbosity, f"must be <= {_MAX_VERBOSITY}")
    if not gates.enabled("LoggingAlphaOptions"):
        for name, options in (("text", logging.options.text), ("json", logging.options.json)):
            _check_alpha_options(f"{path}.options.{name}", options, problems)


def _check_alpha_options(path: str, options: OutputRouting, problems: ProblemList) -> None:
    for name, used in (
        ("splitStream", options.split_stream),
        ("infoBufferSize", options.info_buffer_size != 0),
    ):
        if used:
            problems.errors.append(f"{path}.{name}: Forbidden: feature gate LoggingAlphaOptions is disabled")


def _check_positive(path: str, duration: timedelta, problems: ProblemList) -> None:
    if duration <= timedelta(0):
        problems.add(path, duration, "must be greater than 0")


def _check_not_negative(path: str, duration: timedelta, problems: ProblemList) -> None:
    if duration < timedelta(0):
        problems.add(path, duration, "must be greater than or equal to 0")
