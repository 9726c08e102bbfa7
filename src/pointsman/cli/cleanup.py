"""`pointsman cleanup` and `run --cleanup`: remove everything a proxy put into the kernel, and say what."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pointsman.backends.contract import CleanupItem, CleanupStatus
from pointsman.cli.arguments import ERROR, parser
from pointsman.files import RUN_DIRECTORY

_ABOUT = """Remove the rules, sets, virtual servers and devices of all proxy modes, ours and kube-proxy's, and put back the
kernel settings that were changed. Stop the proxy first. Safe to repeat.

Exit status: 0 everything was removed, 1 something could not be removed, 2 not run as root."""


def command() -> argparse.ArgumentParser:
    made = parser("cleanup", _ABOUT)
    made.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        default=RUN_DIRECTORY,
        help=f"where changed settings are recorded; default {RUN_DIRECTORY}",
    )
    return made


def main(argv: Sequence[str]) -> int:
    """Return exit status 0 when everything was removed, 1 when something could not be, 2 without root."""
    return clean_up(command().parse_args(argv).state_dir)


def clean_up(state_dir: Path) -> int:
    """Return exit status 0 when everything was removed, 1 when something could not be, 2 without root."""
    from pointsman.app.modes import remove_everything

    if os.geteuid() != 0:
        sys.stderr.write("pointsman cleanup: removing kernel rules needs root: use sudo\n")
        return ERROR
    done = remove_everything(state_dir)
    for removed in done:
        out = sys.stderr if removed.status is CleanupStatus.FAILED else sys.stdout
        out.write(f"{sentence(removed)}\n")
    if not done:
        sys.stdout.write("nothing to remove\n")
    return 1 if any(removed.status is CleanupStatus.FAILED for removed in done) else 0


_VERBS = {
    CleanupStatus.REMOVED: "removed",
    CleanupStatus.RESTORED: "restored",
    CleanupStatus.KEPT: "kept",
    CleanupStatus.FAILED: "pointsman: could not clean up",
}


def sentence(removed: CleanupItem) -> str:
    """What was done, for people: `removed chain KUBE-SERVICES in iptables table nat`."""
    thing = f"{removed.count} {removed.kind}" if removed.count else f"{removed.kind} {removed.name}".rstrip()
    where = f" in {removed.where}" if removed.where else ""
    why = f": {removed.why}" if removed.why else ""
    return f"{_VERBS[removed.status]} {thing}{where}{why}"
