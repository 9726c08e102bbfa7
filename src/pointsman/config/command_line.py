"""Parsing of a command line, and the file that it names, into `RunOptions`.

Flags and file do not mix: with --config the file decides everything but the node's name, logging and what is not
configuration, as in kube-proxy. Each given flag that the file makes ineffective is warned about by name. Calling
`parse_run` again with the same arguments reads the file again: that is what a reload does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pointsman.config.defaults import (
    HEALTHZ_PORT,
    METRICS_PORT,
    compute_bind_addresses,
    with_file_defaults,
    with_mode,
    with_port,
)
from pointsman.config.document import format_invalid
from pointsman.config.flags import BY_NAME, FLAGS
from pointsman.config.gates import find_gate_warnings
from pointsman.config.goflags import Given, parse_flags
from pointsman.config.load import load
from pointsman.config.mode_table import IPTABLES
from pointsman.config.options import KUBE_PROXY, RunOptions
from pointsman.config.own_flags import find_flag_conflicts
from pointsman.config.types import KubeProxyConfiguration
from pointsman.config.validate import ROOT, find_problems
from pointsman.errors import ConfigError
from pointsman.files import read_file
from pointsman.model.addresses import split_host_port

MAX_FILE_BYTES = 4 << 20
"""Of a configuration file; a ConfigMap holds 1 MiB at most."""

_Block = TypeVar("_Block", bound=msgspec.Struct)


def parse_run(argv: Sequence[str], *, program: str, mode: str = "") -> RunOptions:
    """Return the options; ConfigError lists every problem of the command line, the file and the configuration.

    `mode` has precedence over that of the file and the flags, and brings its own defaults.
    """
    given = parse_flags(argv, FLAGS, program=program)
    flags = given.values
    if flags.get("help") or flags.get("version") in ("true", "raw"):
        config = with_file_defaults(KubeProxyConfiguration())
        return _build_options(program, config, given)
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
    mode = mode or config.mode
    config = with_mode(config, mode or (IPTABLES if program == KUBE_PROXY else ""))
    problems += find_problems(config) + _find_option_problems(flags)
    if problems:
        raise ConfigError(problems, warnings)
    return _build_options(program, config, given, mode_explicit=bool(mode), warnings=warnings)


def _build_options(
    program: str,
    config: KubeProxyConfiguration,
    given: Given,
    *,
    mode_explicit: bool = False,
    warnings: Sequence[str] = (),
) -> RunOptions:
    options = RunOptions(
        program=program,
        config=config,
        mode_explicit=mode_explicit,
        warnings=tuple(warnings),
        flags_set=dict(given.texts),
    )
    for name, value in given.values.items():
        flag = BY_NAME[name]
        if flag.option:
            options = _replace(options, flag.option, flag.convert(value))
    return options


def _from_file(flags: Mapping[str, Any], problems: list[str], warnings: list[str]) -> KubeProxyConfiguration:
    """Return the file's configuration with the logging flags applied."""
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
    file_warnings = list(loaded.warnings)
    file_warnings += [
        f"flag --{flag} is ignored because --config is given; set it in {name}"
        for flag in flags
        if not BY_NAME[flag].works_with_file
    ]
    if flags.get("strict"):
        problems += [f"refused by --strict: {warning}" for warning in file_warnings]
    else:
        warnings += file_warnings
    config = loaded.config
    for flag, value in flags.items():
        for field in BY_NAME[flag].fields:
            if field == "logging.vmodule":
                config = _replace(config, field, value + config.logging.vmodule)
            elif field.startswith("logging."):
                config = _replace(config, field, value)
    return config


def _from_flags(flags: Mapping[str, Any], warnings: list[str]) -> KubeProxyConfiguration:
    """Return the defaults with the flags applied; a flag may be zero, where a file's zero means the default."""
    config = with_file_defaults(KubeProxyConfiguration())
    for flag, value in flags.items():
        if BY_NAME[flag].name == "bind-address" and not value:
            continue
        for field in BY_NAME[flag].fields:
            config = _replace(config, field, value)
    warnings += find_gate_warnings(config.feature_gates)
    healthz, metrics = compute_bind_addresses(config.bind_address)
    return msgspec.structs.replace(
        config,
        healthz_bind_address=_bind_address(
            flags.get("healthz-bind-address") or healthz, flags.get("healthz-port"), HEALTHZ_PORT, healthz
        ),
        metrics_bind_address=_bind_address(
            flags.get("metrics-bind-address", metrics), flags.get("metrics-port"), METRICS_PORT, metrics
        ),
    )


def _bind_address(address: str, port_flag: int | None, default_port: int, default_address: str) -> str:
    """Return where to serve; a deprecated port flag counts where the address has no port, and 0 disables."""
    if port_flag == 0:
        return ""
    if port_flag is not None and address == default_address:
        parts = split_host_port(address)
        address = parts[0] if parts else address
    return with_port(address, default_port if port_flag is None else port_flag)


def _with_node_name(
    config: KubeProxyConfiguration, flags: Mapping[str, Any], problems: list[str]
) -> KubeProxyConfiguration:
    """Set the node name, in lower case without surrounding white space; the flag has precedence."""
    given = flags.get("hostname-override") or config.hostname_override
    name = given.strip().lower()
    if given and not name:
        problems.append(format_invalid(f"{ROOT}.hostnameOverride", given, "must not be blank"))
    return msgspec.structs.replace(config, hostname_override=name)


def _find_option_problems(flags: Mapping[str, Any]) -> list[str]:
    return [
        format_invalid(f"--{name}", part, rule)
        for name, value in flags.items()
        for part, rule in BY_NAME[name].check(value)
    ] + [format_invalid(f"--{name}", value, rule) for name, value, rule in find_flag_conflicts(flags)]


def _replace(block: _Block, path: str, value: object) -> _Block:
    """Return the struct with another value at a dotted path of attributes."""
    name, _, rest = path.partition(".")
    return msgspec.structs.replace(
        block, **{name: _replace(getattr(block, name), rest, value) if rest else value}
    )
