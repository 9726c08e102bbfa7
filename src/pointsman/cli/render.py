"""`pointsman render`: the exact rules for a set of manifests, without a cluster, a kernel or privileges."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pointsman.cli.arguments import (
    Parser,
    add_offline,
    add_output,
    create_parser,
    parse_offline,
    plan_offline,
    reject_flags,
)
from pointsman.cli.output import print_answer, run_guarded
from pointsman.report.status import FamilyVerification, Verification, render_verification

_ABOUT = """Print the rules that a node would have for these manifests; the same input always gives the same text.

With --diff, compare them with the kernel of this machine (needs root)."""


def build_parser() -> Parser:
    made = create_parser("render", _ABOUT)
    add_offline(made, required=True)
    made.add_argument("--diff", action="store_true", help="compare with this machine's kernel")
    add_output(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0, with --diff 1 for differences; 2 when it cannot be done."""
    made = build_parser()
    given, flags = parse_offline(made, argv)
    if not given.diff:
        reject_flags(made, given, "only with --diff", "output")
    return run_guarded("render", lambda: _compare(given, flags) if given.diff else _render(given, flags))


def _render(given: argparse.Namespace, flags: Sequence[str]) -> int:
    from pointsman.app.modes import build_setup
    from pointsman.backends import mode_named

    options, planned = plan_offline("render", given, flags)
    mode, setup = mode_named(options.config.mode), build_setup(options, options.config.mode)
    several = len(planned.requests) > 1
    for family, request in planned.requests.items():
        if several:
            sys.stdout.write(f"# {family.value}\n")
        sys.stdout.write(mode.render(setup, request))
    return 0


def _compare(given: argparse.Namespace, flags: Sequence[str]) -> int:
    from pointsman.app import modes
    from pointsman.backends import mode_named
    from pointsman.machine.host_facts import LinuxMachine

    options, planned = plan_offline("render", given, flags, machine=LinuxMachine())
    mode, setup = mode_named(options.config.mode), modes.build_setup(options, options.config.mode)
    sysctls = modes.open_sysctls(options.paths.state_dir)
    found: list[FamilyVerification] = []
    for family, request in planned.requests.items():
        backend = mode.backend(setup, family, sysctls)
        try:
            entries = backend.prepare_comparison(request).differences()
        finally:
            backend.close()
        found.append(FamilyVerification(family.value, tuple(entries), 0))
    verification = Verification(options.config.mode, tuple(found))
    print_answer(given, verification, render_verification)
    return verification.exit_status
