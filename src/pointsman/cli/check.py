"""`pointsman check`: validate a configuration and print the effective one; nothing is run or changed."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from pointsman.backends import mode_named
from pointsman.cli.arguments import Parser, add_output, create_parser, split_run_flags
from pointsman.cli.cluster import add_cluster_source, read_cluster, reject_two_sources
from pointsman.cli.output import detect_screen, print_answer, run_guarded
from pointsman.cli.run import parse_options
from pointsman.config.command_line import parse_run
from pointsman.config.flags import MAX_HELP_WIDTH, render_flags
from pointsman.config.load import config_to_yaml
from pointsman.config.mode_table import BY_PREFERENCE, MODES
from pointsman.config.options import KUBE_PROXY
from pointsman.errors import ConfigError
from pointsman.kernel.sysctl import parse_kernel_version
from pointsman.model.findings import Finding, Severity
from pointsman.model.objects import Service
from pointsman.screen import Screen, lay_out
from pointsman.text import format_count
from pointsman.wording.findings import describe, render_message
from pointsman.yamltext import load_documents

_ABOUT = """Read the configuration file and the flags as `pointsman run` would, print the configuration that results, and list
errors and warnings. Nothing is run or changed; no cluster, root or kernel is needed.

An unknown field is a warning, because files outlive versions; with --strict it is an error, for use in a pipeline.

With --to nftables, list what changes for a cluster that leaves iptables or ipvs mode, and with -o yaml print the converted
configuration file. Services come from --manifests or, with --kubeconfig, from the API server; without either, only the
configuration is examined."""


def build_parser() -> Parser:
    """Return the parser without the flags of `run`, which the command takes as well."""
    made = create_parser("check", _ABOUT)
    made.takes_run_flags = True
    made.usage = "pointsman check [--strict] [--to MODE] [RUN FLAGS]"
    made.add_argument("--to", choices=tuple(MODES), help="list what changes in this mode")
    add_cluster_source(made)
    made.add_argument(
        "--kernel",
        default=platform.release(),
        help="release of the nodes' kernel; default: that of this machine",
    )
    add_output(made)
    return made


def main(argv: Sequence[str]) -> int:
    """`pointsman check [flags]` is `pointsman run --check [flags]`."""
    if "-h" in argv or "--help" in argv:
        sys.stdout.write(build_parser().format_help())
        sys.stdout.write("\n".join([*render_flags(detect_screen().width or MAX_HELP_WIDTH), ""]))
        return 0
    made = build_parser()
    own, flags = split_run_flags(made, argv)
    if any(argument.partition("=")[0] == "--to" for argument in own):
        given = made.parse_args(own)
        reject_two_sources(made, given)
        return run_guarded("check", lambda: _check_migration(given, flags))
    if any(argument.startswith(("-o", "--output")) for argument in own):
        given = made.parse_args(own)
        if given.output in ("json", "yaml"):
            return _print_check(given, flags)
        argv = flags
    answer = parse_options(["--check", *argv], program="pointsman")
    assert isinstance(answer, int)
    return answer


class CheckReport(msgspec.Struct, frozen=True):
    """Whether a configuration is valid."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    configuration: dict[str, Any] | None
    """The effective one; None where there are errors."""


def _print_check(given: argparse.Namespace, flags: Sequence[str]) -> int:
    """Return exit status 1 for an invalid configuration, as the text does."""
    try:
        options = parse_run(flags, program="pointsman")
    except ConfigError as invalid:
        report = CheckReport(invalid.problems, invalid.warnings, None)
    else:
        effective = load_documents(config_to_yaml(options.config).encode())[0]
        report = CheckReport((), tuple(options.warnings), effective)
    print_answer(given, report, lambda _report, _screen: "")
    return 1 if report.errors else 0


def _check_migration(given: argparse.Namespace, flags: Sequence[str]) -> int:
    """Return exit status 1 where the cluster cannot change its mode as it is."""
    config = parse_run(flags, program=KUBE_PROXY).config
    if config.mode == given.to:
        raise ConfigError(
            [
                f"the configuration has mode {config.mode} already; name the present one with --config or --proxy-mode"
            ]
        )
    services: Sequence[Service] = ()
    has_cluster = given.manifests is not None or given.kubeconfig or given.context
    if has_cluster:
        services = tuple(read_cluster("check", given).services.values())
    plan = mode_named(given.to).migration
    if plan is None:
        raise ConfigError([f"--to {given.to}: only a move to {BY_PREFERENCE[0]} mode can be examined"])
    planned = plan(config, services, parse_kernel_version(given.kernel))
    if given.output == "yaml":
        sys.stdout.write(config_to_yaml(planned.configuration))
    else:
        findings = tuple(map(describe, planned.findings))
        report = MigrationReport(config.mode, given.to, len(services) if has_cluster else None, findings)
        print_answer(given, report, render_migration)
    return 1 if any(finding.is_error for finding in planned.findings) else 0


class MigrationReport(msgspec.Struct, frozen=True, rename="camel"):
    """What changes with the mode."""

    source: str
    target: str
    services: int | None
    """How many were examined; None for none."""
    findings: tuple[Finding, ...]


_MARKS = {Severity.ERROR: "✗", Severity.WARNING: "!", Severity.NOTICE: "-"}


def render_migration(report: MigrationReport, screen: Screen) -> str:
    examined = "the configuration alone; add --manifests or --kubeconfig for Services"
    if report.services is not None:
        examined = f"the configuration and {format_count(report.services, 'Service')}"
    lines = [f"From {report.source} to {report.target} mode; examined: {examined}", ""]
    for finding in report.findings:
        lines.append(f"{_MARKS[finding.severity]} {render_message(finding)}")
        lines += [f"    -> {finding.remedy}"] if finding.remedy else []
    lines += ["", "The converted configuration: the same command with -o yaml"]
    return lay_out(lines, screen)
