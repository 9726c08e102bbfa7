"""From a command line to everything `run` needs to know, as one frozen value.

Flags and file do not mix: with --config the file decides everything but the node's name, logging and what is not
configuration, as in kube-proxy. Each given flag that the file makes ineffective is warned about by name. Calling
`parse_run` again with the same arguments reads the file again: that is what a reload does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from pointsman.config.defaults import (
    HEALTHZ_PORT,
    METRICS_PORT,
    default_bind_addresses,
    with_file_defaults,
    with_mode,
    with_port,
)
from pointsman.config.document import invalid
from pointsman.config.flag_table import BY_NAME, FLAGS
from pointsman.config.gates import find_gate_warnings
from pointsman.config.goflags import parse_flags
from pointsman.config.load import load
from pointsman.config.mode_table import IPTABLES
from pointsman.config.types import KubeProxyConfiguration
from pointsman.config.validate import ROOT, validation_problems
from pointsman.errors import ConfigError
from pointsman.files import CONTROL_SOCKET, RUN_DIRECTORY, read_file
from pointsman.model.addresses import (
    Family,
    address_from_text,
    cidr_from_text,
    family_of,
    find_unusable_reason,
    split_host_port,
)
from pointsman.model.balancing import (
    DEFAULT_HASH_SLOTS,
    HASH_SLOTS_RANGE,
    MAX_SLOW_START_SECONDS,
    OWN_SCHEDULERS,
    BalancingDefaults,
    Scheduler,
)

KUBE_PROXY = "kube-proxy"
MAX_FILE_BYTES = 4 << 20
"""Of a configuration file; a ConfigMap holds 1 MiB at most."""
_MIN_SYNC_PERIOD_OF_FLAGS = timedelta(seconds=1)


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed command line of `run`: the effective configuration and what only flags can say."""

    program: str
    config: KubeProxyConfiguration
    """Defaulted and validated; `mode` is empty only where the mode is still to be picked (see `with_mode`)."""
    mode_explicit: bool = False
    """A flag or the file names the mode."""
    config_file: Path | None = None
    master: str = ""
    cleanup: bool = False
    init_only: bool = False
    write_config_to: Path | None = None
    show_help: bool = False
    show_version: str = ""
    """Empty, `true` or `raw`."""
    check: bool = False
    manifests: Path | None = None
    service_metrics: bool = False
    service_metrics_limit: int = 1000
    control_socket: Path | None = None
    state_dir: Path = RUN_DIRECTORY
    host_root: Path = Path("/")
    wait_for_instance: bool = False
    drain_period: timedelta = timedelta()
    """How long load balancers get to stop choosing this node between SIGTERM and the end."""
    probe_addresses: tuple[str, ...] = ()
    """Service addresses of our own for the datapath probe."""
    external_ip_allow_cidrs: tuple[str, ...] = ()
    balancing: BalancingDefaults = BalancingDefaults()
    warnings: tuple[str, ...] = ()
    flags_set: Mapping[str, str] = {}
    """The given flags as text, for /flagz."""


def parse_run(argv: Sequence[str], *, program: str) -> RunOptions:
    """The options, or ConfigError listing every problem of the command line, the file and the configuration."""
    given = parse_flags(argv, FLAGS, program=program)
    flags = given.values
    if flags.get("help") or flags.get("version") in ("true", "raw"):
        config = with_file_defaults(KubeProxyConfiguration())
        return _options(program, config, flags, given.texts, mode_explicit=False, warnings=[])
    problems: list[str] = []
    warnings = [
        f"flag --{name} is deprecated: {BY_NAME[name].deprecated}"
        for name in flags
        if BY_NAME[name].deprecated
    ]
    if flags.get("config"):
        config = _from_file(flags, problems, warnings)
    else:
        config = _from_flags(flags, warnings)
    config = _with_node_name(config, flags, problems)
    mode_explicit = bool(config.mode)
    config = with_mode(config, config.mode or (IPTABLES if program == KUBE_PROXY else ""))
    problems += validation_problems(config) + _option_problems(flags)
    if problems:
        raise ConfigError(problems)
    return _options(program, config, flags, given.texts, mode_explicit=mode_explicit, warnings=warnings)


def _options(
    program: str,
    config: KubeProxyConfiguration,
    flags: Mapping[str, Any],
    texts: Mapping[str, str],
    *,
    mode_explicit: bool,
    warnings: Sequence[str],
) -> RunOptions:
    def path(name: str) -> Path | None:
        text = flags.get(name, BY_NAME[name].default)
        return Path(text) if text else None

    version = flags.get("version", "")
    state_dir = path("state-dir") or RUN_DIRECTORY
    control_socket = path("control-socket")
    if "control-socket" not in flags:
        control_socket = state_dir / CONTROL_SOCKET.name
    return RunOptions(
        program=program,
        config=config,
        mode_explicit=mode_explicit,
        config_file=path("config"),
        master=flags.get("master", ""),
        cleanup=flags.get("cleanup", False),
        init_only=flags.get("init-only", False),
        write_config_to=path("write-config-to"),
        show_help=flags.get("help", False),
        show_version=version if version in ("true", "raw") else "",
        check=flags.get("check", False),
        manifests=path("manifests"),
        service_metrics=flags.get("service-metrics", False),
        service_metrics_limit=flags.get("service-metrics-limit", 1000),
        control_socket=control_socket,
        state_dir=state_dir,
        host_root=path("host-root") or Path("/"),
        wait_for_instance=flags.get("wait-for-instance", False),
        drain_period=flags.get("drain-period", timedelta()),
        probe_addresses=flags.get("probe-addresses", ()),
        external_ip_allow_cidrs=flags.get("external-ip-allow-cidrs", ()),
        balancing=_balancing(flags),
        warnings=tuple(warnings),
        flags_set=dict(texts),
    )


def _balancing(flags: Mapping[str, Any]) -> BalancingDefaults:
    return BalancingDefaults(
        scheduler=OWN_SCHEDULERS.get(flags.get("default-scheduler", ""), Scheduler.RANDOM),
        slow_start=round(flags.get("default-slow-start", timedelta(0)).total_seconds()),
        seed=flags.get("source-hash-seed", 1),
        hash_slots=flags.get("source-hash-slots", DEFAULT_HASH_SLOTS),
        reset_gone=flags.get("reset-gone", False),
    )


def _balancing_problems(flags: Mapping[str, Any]) -> Iterator[str]:
    word = flags.get("default-scheduler", Scheduler.RANDOM.value)
    if word not in OWN_SCHEDULERS:
        yield invalid("--default-scheduler", word, f"must be one of {', '.join(OWN_SCHEDULERS)}")
    slow_start = flags.get("default-slow-start", timedelta(0))
    if not timedelta(0) <= slow_start <= timedelta(seconds=MAX_SLOW_START_SECONDS):
        yield invalid("--default-slow-start", slow_start, f"must be from 0 to {MAX_SLOW_START_SECONDS}s")
    if flags.get("source-hash-seed", 1) < 1:
        yield invalid("--source-hash-seed", flags["source-hash-seed"], "must be greater than 0")
    least, most = HASH_SLOTS_RANGE
    if not least <= flags.get("source-hash-slots", DEFAULT_HASH_SLOTS) <= most:
        problem = f"must be from {least} to {most}"
        yield invalid("--source-hash-slots", flags["source-hash-slots"], problem)


def _from_file(flags: Mapping[str, Any], problems: list[str], warnings: list[str]) -> KubeProxyConfiguration:
    """The file's configuration with the logging flags on top."""
    name = flags["config"]
    try:
        data = read_file(Path(name), MAX_FILE_BYTES)
    except OSError as unreadable:
        reason = unreadable.strerror or str(unreadable)
        raise ConfigError([f"--config: cannot read {name}: {reason}"]) from unreadable
    try:
        loaded = load(data)
    except ConfigError as broken:
        raise ConfigError([f"{name}: {problem}" for problem in broken.problems]) from broken
    problems += loaded.problems
    odd = list(loaded.warnings)
    odd += [
        f"flag --{flag} is ignored because --config is given; set it in {name}"
        for flag in flags
        if not BY_NAME[flag].works_with_file
    ]
    if flags.get("strict"):
        problems += [f"refused by --strict: {oddity}" for oddity in odd]
    else:
        warnings += odd
    config = loaded.config
    for flag, value in flags.items():
        for field in BY_NAME[flag].fields:
            if field == "logging.vmodule":
                config = _with_field(config, field, value + config.logging.vmodule)
            elif field.startswith("logging."):
                config = _with_field(config, field, value)
    return config


def _from_flags(flags: Mapping[str, Any], warnings: list[str]) -> KubeProxyConfiguration:
    """Defaults with the flags on top; a flag may say zero, where a file's zero means the default."""
    config = with_file_defaults(KubeProxyConfiguration())
    config = _with_field(config, "ipvs.min_sync_period", _MIN_SYNC_PERIOD_OF_FLAGS)
    for flag, value in flags.items():
        if BY_NAME[flag].name == "bind-address" and not value:
            continue
        for field in BY_NAME[flag].fields:
            config = _with_field(config, field, value)
    warnings += find_gate_warnings(config.feature_gates)
    healthz, metrics = default_bind_addresses(config.bind_address)
    return msgspec.structs.replace(
        config,
        healthz_bind_address=_served_at(
            flags.get("healthz-bind-address") or healthz, flags.get("healthz-port"), HEALTHZ_PORT, healthz
        ),
        metrics_bind_address=_served_at(
            flags.get("metrics-bind-address", metrics), flags.get("metrics-port"), METRICS_PORT, metrics
        ),
    )


def _served_at(address: str, port_flag: int | None, default_port: int, default_address: str) -> str:
    """Where to serve; a deprecated port flag counts where the address says no port, and 0 there disables."""
    if port_flag == 0:
        return ""
    if port_flag is not None and address == default_address:
        parts = split_host_port(address)
        address = parts[0] if parts else address
    return with_port(address, default_port if port_flag is None else port_flag)


def _with_node_name(
    config: KubeProxyConfiguration, flags: Mapping[str, Any], problems: list[str]
) -> KubeProxyConfiguration:
    """Node names are lower case without surrounding white space, whoever gives them; the flag wins."""
    given = flags.get("hostname-override") or config.hostname_override
    name = given.strip().lower()
    if given and not name:
        problems.append(invalid(f"{ROOT}.hostnameOverride", given, "must not be blank"))
    return msgspec.structs.replace(config, hostname_override=name)


def _option_problems(flags: Mapping[str, Any]) -> list[str]:
    problems = [
        invalid("--external-ip-allow-cidrs", text, "must be a valid CIDR")
        for text in flags.get("external-ip-allow-cidrs", ())
        if cidr_from_text(text) is None
    ]
    limit = flags.get("service-metrics-limit", 1)
    if limit < 1:
        problems.append(invalid("--service-metrics-limit", limit, "must be greater than 0"))
    problems += _probe_address_problems(flags.get("probe-addresses", ()))
    if flags.get("drain-period", timedelta()) < timedelta():
        problems.append(invalid("--drain-period", flags["drain-period"], "must be 0 or more"))
    problems += _balancing_problems(flags)
    return problems


def _probe_address_problems(texts: Sequence[str]) -> Iterator[str]:
    seen: set[Family] = set()
    for text in texts:
        address = address_from_text(text)
        if address is None:
            yield invalid("--probe-addresses", text, "must be an IP address")
            continue
        reason = find_unusable_reason(address)
        if reason is not None:
            yield invalid(
                "--probe-addresses", text, f"must be an address that a Service may have; it is {reason}"
            )
        if family_of(address) in seen:
            yield invalid(
                "--probe-addresses", text, f"only one {family_of(address).value} address is possible"
            )
        seen.add(family_of(address))


def _with_field(config: KubeProxyConfiguration, field: str, value: object) -> KubeProxyConfiguration:
    def replaced(block: Any, names: list[str]) -> Any:
        name, *deeper = names
        new = replaced(getattr(block, name), deeper) if deeper else value
        return msgspec.structs.replace(block, **{name: new})

    changed: KubeProxyConfiguration = replaced(config, field.split("."))
    return changed
