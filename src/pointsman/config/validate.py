"""Every rule a configuration must obey, checked together; each problem names the field path and the rule.

Paths use the names in the file (`KubeProxyConfiguration.conntrack.min`), where upstream mixes in its internal type
names, which nobody editing a file has ever seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pointsman import KUBERNETES_MINOR
from pointsman.config.document import Findings
from pointsman.config.gates import effective_gates, find_gate_problems
from pointsman.config.mode_table import IPTABLES, IPVS, MODES, mode_rows
from pointsman.config.types import Conntrack, KubeProxyConfiguration, Logging, OutputRouting
from pointsman.model.addresses import address_from_text, cidr_from_text, port_from_text, split_host_port

ROOT = "KubeProxyConfiguration"
LOCAL_MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")
NODE_PORT_KEYWORDS = ("primary", "localhost", "all")
PREVIOUS_MINOR = f"1.{KUBERNETES_MINOR - 1}"
"""The minor version before the one we follow; the only one hidden metrics can be shown for."""
_LARGEST_VERBOSITY = (1 << 31) - 1
_CIDR_EXAMPLE = "(e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"
_PAIR_EXAMPLE = "(e.g. 10.100.0.0/16,fde4:8dba:82e1::/48)"


def validation_problems(config: KubeProxyConfiguration) -> list[str]:
    """Everything wrong with a defaulted configuration; an empty list means that it can run."""
    findings = Findings()
    for problem in find_gate_problems(config.feature_gates):
        findings.invalid(f"{ROOT}.featureGates", config.feature_gates, problem)
    _check_mode(config, findings)
    _check_periods(config, findings)
    _check_addresses(config, findings)
    _check_local(config, findings)
    _check_conntrack(config.conntrack, findings)
    _check_limits(config, findings)
    _check_logging(config, findings)
    return findings.problems


def _check_mode(config: KubeProxyConfiguration, findings: Findings) -> None:
    gates = effective_gates(config.feature_gates)
    modes = [name for name, row in MODES.items() if not row.gate or gates.enabled(row.gate)]
    if config.mode and config.mode not in modes:
        names = ", ".join(modes)
        findings.invalid(
            f"{ROOT}.mode", config.mode, f"must be {names} or blank (blank means the default mode)"
        )
    for block in dict.fromkeys((IPTABLES, *(row.masquerade for row in mode_rows(config.mode)))):
        bit = getattr(config, block).masquerade_bit
        if not 0 <= bit <= 31:
            findings.invalid(f"{ROOT}.{block}.masqueradeBit", bit, "must be within the range [0, 31]")
    if config.mode == IPVS:
        for name, timeout in (
            ("tcpTimeout", config.ipvs.tcp_timeout),
            ("tcpFinTimeout", config.ipvs.tcp_fin_timeout),
            ("udpTimeout", config.ipvs.udp_timeout),
        ):
            _check_not_negative(f"{ROOT}.ipvs.{name}", timeout, findings)
        for index, text in enumerate(config.ipvs.exclude_cidrs):
            if cidr_from_text(text) is None:
                findings.invalid(f"{ROOT}.ipvs.excludeCIDRs[{index}]", text, "must be a valid CIDR")


def _check_periods(config: KubeProxyConfiguration, findings: Findings) -> None:
    """Only the block of the chosen mode counts; without a mode either of the two defaults may be chosen."""
    _check_positive(f"{ROOT}.configSyncPeriod", config.config_sync_period, findings)
    for row in mode_rows(config.mode):
        block, path = getattr(config, row.periods), f"{ROOT}.{row.periods}"
        _check_positive(f"{path}.syncPeriod", block.sync_period, findings)
        _check_not_negative(f"{path}.minSyncPeriod", block.min_sync_period, findings)
        if block.min_sync_period > block.sync_period:
            rule = f"must be greater than or equal to {path}.minSyncPeriod"
            findings.invalid(f"{path}.syncPeriod", block.sync_period, rule)


def _check_addresses(config: KubeProxyConfiguration, findings: Findings) -> None:
    if address_from_text(config.bind_address) is None:
        rule = "not a valid textual representation of an IP address"
        findings.invalid(f"{ROOT}.bindAddress", config.bind_address, rule)
    for name, address in (
        ("healthzBindAddress", config.healthz_bind_address),
        ("metricsBindAddress", config.metrics_bind_address),
    ):
        if address:
            _check_ip_and_port(f"{ROOT}.{name}", address, findings)
    seen: set[str] = set()
    for index, text in enumerate(config.node_port_addresses):
        path = f"{ROOT}.nodePortAddresses[{index}]"
        if text in NODE_PORT_KEYWORDS:
            if text in seen:
                findings.problems.append(f'{path}: Duplicate value: "{text}"')
            seen.add(text)
        elif cidr_from_text(text) is None:
            rule = "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'"
            findings.invalid(path, text, rule)


def _check_ip_and_port(path: str, text: str, findings: Findings) -> None:
    parts = split_host_port(text)
    if parts is None:
        findings.invalid(path, text, "must be IP:port")
        return
    host, port = parts
    if address_from_text(host) is None:
        findings.invalid(path, host, "must be a valid IP")
    if not port_from_text(port):
        findings.invalid(path, port, "must be a valid port")


def _check_local(config: KubeProxyConfiguration, findings: Findings) -> None:
    mode = config.detect_local_mode
    if mode and mode not in LOCAL_MODES:
        supported = ", ".join(f'"{name}"' for name in LOCAL_MODES)
        findings.problems.append(
            f'{ROOT}.detectLocalMode: Unsupported value: "{mode}": supported values: {supported}, ""'
        )
    if mode == "BridgeInterface":
        _check_interface(
            f"{ROOT}.detectLocal.bridgeInterface", config.detect_local.bridge_interface, findings
        )
    if mode == "InterfaceNamePrefix":
        prefix = config.detect_local.interface_name_prefix
        _check_interface(f"{ROOT}.detectLocal.interfaceNamePrefix", prefix, findings)
    if mode in ("", "ClusterCIDR"):
        _check_cluster_cidrs(config.cluster_cidrs, config.cluster_cidr, findings)


def _check_interface(path: str, name: str, findings: Findings) -> None:
    """The name goes into rules, so what the kernel never allows in one is refused here rather than there."""
    if not name:
        findings.invalid(path, name, "must not be empty")
    elif len(name.encode()) > 15 or not name.isprintable() or any(char in name for char in ' /"'):
        findings.invalid(
            path, name, "must be an interface name: at most 15 bytes, without spaces, quotes or slashes"
        )


def _check_cluster_cidrs(texts: Sequence[str], whole: str, findings: Findings) -> None:
    path = f"{ROOT}.clusterCIDR"
    pair_rule = f"must be either a single CIDR or a dual-stack pair of CIDRs {_PAIR_EXAMPLE}"
    if len(texts) > 2:
        findings.invalid(path, whole, pair_rule)
        return
    cidrs = [cidr_from_text(text) for text in texts]
    for text, cidr in zip(texts, cidrs, strict=True):
        if cidr is None:
            findings.invalid(path, text, f"must be a valid CIDR block {_CIDR_EXAMPLE}")
    families = [cidr.family for cidr in cidrs if cidr is not None]
    if len(families) == 2 and families[0] is families[1]:
        findings.invalid(path, whole, pair_rule)


def _check_conntrack(conntrack: Conntrack, findings: Findings) -> None:
    for name, count in (("maxPerCore", conntrack.max_per_core), ("min", conntrack.min)):
        if count < 0:
            findings.invalid(f"{ROOT}.conntrack.{name}", count, "must be greater than or equal to 0")
    for name, timeout in (
        ("tcpEstablishedTimeout", conntrack.tcp_established_timeout),
        ("tcpCloseWaitTimeout", conntrack.tcp_close_wait_timeout),
        ("udpTimeout", conntrack.udp_timeout),
        ("udpStreamTimeout", conntrack.udp_stream_timeout),
    ):
        _check_not_negative(f"{ROOT}.conntrack.{name}", timeout, findings)


def _check_limits(config: KubeProxyConfiguration, findings: Findings) -> None:
    if config.client_connection.burst < 0:
        rule = "must be greater than or equal to 0"
        findings.invalid(f"{ROOT}.clientConnection.burst", config.client_connection.burst, rule)
    if not -1000 <= config.oom_score_adj <= 1000:
        findings.invalid(
            f"{ROOT}.oomScoreAdj", config.oom_score_adj, "must be within the range [-1000, 1000]"
        )
    version = config.show_hidden_metrics_for_version
    if version and version != PREVIOUS_MINOR:
        rule = f"must be omitted or have the value '{PREVIOUS_MINOR}'; only the previous minor version is allowed"
        findings.invalid(f"{ROOT}.showHiddenMetricsForVersion", version, rule)


def _check_logging(config: KubeProxyConfiguration, findings: Findings) -> None:
    logging: Logging = config.logging
    gates = effective_gates(config.feature_gates)
    path = f"{ROOT}.logging"
    _check_positive(f"{path}.flushFrequency", logging.flush_frequency, findings)
    if logging.format not in ("text", "json"):
        findings.invalid(f"{path}.format", logging.format, "must be text or json")
    elif logging.format == "json" and not gates.enabled("LoggingBetaOptions"):
        findings.problems.append(
            f"{path}.format: Forbidden: log format json is disabled, see feature gate LoggingBetaOptions"
        )
    if logging.verbosity > _LARGEST_VERBOSITY:
        findings.invalid(f"{path}.verbosity", logging.verbosity, f"must be <= {_LARGEST_VERBOSITY}")
    if logging.vmodule and logging.format != "text":
        findings.problems.append(f"{path}.vmodule: Forbidden: only supported for text log format")
    for index, item in enumerate(logging.vmodule):
        if not item.file_pattern:
            findings.problems.append(
                f"{path}.vmodule[{index}]: Required value: file pattern must not be empty"
            )
        elif "=" in item.file_pattern or "," in item.file_pattern:
            rule = "file pattern must not contain equal sign or comma"
            findings.invalid(f"{path}.vmodule[{index}]", item.file_pattern, rule)
        if item.verbosity > _LARGEST_VERBOSITY:
            findings.invalid(f"{path}.vmodule[{index}]", item.verbosity, f"must be <= {_LARGEST_VERBOSITY}")
    if not gates.enabled("LoggingAlphaOptions"):
        for name, options in (("text", logging.options.text), ("json", logging.options.json)):
            _check_alpha_options(f"{path}.options.{name}", options, findings)


def _check_alpha_options(path: str, options: OutputRouting, findings: Findings) -> None:
    for name, used in (
        ("splitStream", options.split_stream),
        ("infoBufferSize", options.info_buffer_size != 0),
    ):
        if used:
            findings.problems.append(
                f"{path}.{name}: Forbidden: feature gate LoggingAlphaOptions is disabled"
            )


def _check_positive(path: str, duration: timedelta, findings: Findings) -> None:
    if duration <= timedelta(0):
        findings.invalid(path, duration, "must be greater than 0")


def _check_not_negative(path: str, duration: timedelta, findings: Findings) -> None:
    if duration < timedelta(0):
        findings.invalid(path, duration, "must be greater than or equal to 0")
