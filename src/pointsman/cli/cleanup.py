"""`pointsman cleanup` and `run --cleanup`: remove everything a proxy put into the kernel, and say what."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pointsman.backends.contract import Fate, Removed
from pointsman.files import RUN_DIRECTORY


def main(argv: Sequence[str]) -> int:
    """`pointsman cleanup [--state-dir DIR]`; fine to repeat."""
    arguments = list(argv)
    if any(argument in ("-h", "--help") for argument in arguments):
        sys.stdout.write(
            "Usage: pointsman cleanup [--state-dir DIR]\n\n"
            "Removes the rules, sets, virtual servers and devices of all proxy modes (ours and kube-proxy's),\n"
            f"and puts back kernel settings recorded in DIR (default {RUN_DIRECTORY}). Stop the proxy first.\n"
        )
        return 0
    state_dir = RUN_DIRECTORY
    if arguments and arguments[0].startswith("--state-dir"):
        flag = arguments.pop(0)
        value = flag.partition("=")[2] or (arguments.pop(0) if arguments else "")
        if not value:
            sys.stderr.write("pointsman cleanup: --state-dir needs a directory\n")
            return 2
        state_dir = Path(value)
    if arguments:
        sys.stderr.write(f"pointsman cleanup: unexpected argument {arguments[0]!r}; see --help\n")
        return 2
    return clean_up(state_dir)


def clean_up(state_dir: Path) -> int:
    """Exit status 0 when everything is gone, 1 when something would not go."""
    from pointsman.app.modes import remove_everything

    if os.geteuid() != 0:
        sys.stderr.write("pointsman: clean-up changes the kernel's rules; run it as root\n")
        return 1
    done = remove_everything(state_dir)
    for removed in done:
        out = sys.stderr if removed.fate is Fate.FAILED else sys.stdout
        out.write(f"{sentence(removed)}\n")
    if not done:
        sys.stdout.write("nothing to remove\n")
    return 1 if any(removed.fate is Fate.FAILED for removed in done) else 0


_VERBS = {
    Fate.REMOVED: "removed",
    Fate.RESTORED: "restored",
    Fate.LEFT: "left",
    Fate.FAILED: "pointsman: could not clean up",
}


def sentence(removed: Removed) -> str:
    """What was done, for people: `removed chain KUBE-SERVICES in iptables table nat`."""
    thing = f"{removed.count} {removed.kind}" if removed.count else f"{removed.kind} {removed.name}".rstrip()
    where = f" in {removed.where}" if removed.where else ""
    why = f": {removed.why}" if removed.why else ""
    return f"{_VERBS[removed.fate]} {thing}{where}{why}"
