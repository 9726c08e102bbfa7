"""`pointsman cleanup` and `run --cleanup`: remove everything a proxy put into the kernel, and say what."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pointsman.errors import PointsmanError
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
    try:
        done = remove_everything(state_dir)
    except PointsmanError as error:
        sys.stderr.write(f"pointsman: not everything could be removed: {error}\n")
        return 1
    for what in done:
        sys.stdout.write(f"{_sentence(what)}\n")
    if not done:
        sys.stdout.write("nothing to remove\n")
    return 1 if any(what.startswith("not cleaned") for what in done) else 0


def _sentence(done: str) -> str:
    """Most reports are the name of a thing that is gone; some say themselves what was done."""
    says_itself = done.startswith(("removed ", "not cleaned")) or " restored " in done or "but kept" in done
    return done if says_itself else f"removed {done}"
