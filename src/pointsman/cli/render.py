"""`pointsman render`: the exact rules for a set of manifests, without a cluster, a kernel or privileges."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pointsman.cli.arguments import (
    add_offline,
    families_of,
    guarded,
    offline_options,
    parser,
    split_run_flags,
    warn,
)
from pointsman.cli.output import screen
from pointsman.report.status import FamilyVerification, Verification, verification_text

_ABOUT = """Print the rules that a node would hold for these manifests; the same input always gives the same text.

With --diff, compare them with what the kernel of this machine holds (needs root). Exit status then:
0 equal, 1 different, 2 something went wrong."""


def command() -> argparse.ArgumentParser:
    made = parser("render", _ABOUT)
    add_offline(made, required=True)
    made.add_argument("--diff", action="store_true", help="compare with this machine's kernel")
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0, with --diff 1 for differences; 2 when it cannot be done."""
    own, flags = split_run_flags(argv)
    given = command().parse_args(own)
    return guarded("render", lambda: _diff(given, flags) if given.diff else _render(given, flags))


def _render(given: argparse.Namespace, flags: Sequence[str]) -> int:
    from pointsman.app.modes import build_setup
    from pointsman.app.offline import plan_manifests
    from pointsman.backends import mode_named

    options = offline_options(given, flags)
    warn("render", options.warnings)
    planned = plan_manifests(given.manifests, options, families=families_of(given))
    warn("render", planned.problems)
    mode, setup = mode_named(options.config.mode), build_setup(options, options.config.mode)
    several = len(planned.requests) > 1
    for family, request in planned.requests.items():
        if several:
            sys.stdout.write(f"# {family.value}\n")
        sys.stdout.write(mode.render(setup, request))
    return 0


def _diff(given: argparse.Namespace, flags: Sequence[str]) -> int:
    from pointsman.app import modes
    from pointsman.app.offline import plan_manifests
    from pointsman.backends import mode_named
    from pointsman.machine.own_addresses import LinuxMachine, kernel_families

    options = offline_options(given, flags)
    warn("render", options.warnings)
    families = [family for family in families_of(given) if family in kernel_families()]
    machine = LinuxMachine()
    planned = plan_manifests(
        given.manifests,
        options,
        families=families,
        local_addresses={family: machine.local_addresses(family) for family in families},
    )
    warn("render", planned.problems)
    mode, setup = mode_named(options.config.mode), modes.build_setup(options, options.config.mode)
    sysctls = modes.sysctl_journal(options.paths.state_dir)
    found: list[FamilyVerification] = []
    for family in families:
        backend = mode.backend(setup, family, sysctls)
        try:
            entries = backend.comparison(planned.requests[family]).differences()
        finally:
            backend.close()
        found.append(FamilyVerification(family.value, tuple(entries), 0))
    verification = Verification(options.config.mode, tuple(found))
    sys.stdout.write(verification_text(verification, screen()))
    return verification.exit_status
