"""`pointsman check`: validate a configuration and print the effective one; nothing is run or changed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pointsman.cli.arguments import parser
from pointsman.cli.output import screen
from pointsman.cli.preamble import options_to_run
from pointsman.config.flags import MAX_HELP_WIDTH, render_flags

_ABOUT = """Read the configuration file and the flags as `pointsman run` would, print the configuration that results, and list
errors and warnings. Nothing is run or changed; no cluster, root or kernel is needed.

An unknown field is a warning, because files outlive versions; with --strict it is an error, for use in a pipeline."""


def command() -> argparse.ArgumentParser:
    """The command without the flags of `run`, which it takes besides."""
    made = parser("check", _ABOUT)
    made.takes_run_flags = True
    made.usage = "pointsman check [--strict] [flags of `pointsman run`]"
    return made


def main(argv: Sequence[str]) -> int:
    """`pointsman check [flags]` is `pointsman run --check [flags]`."""
    if "-h" in argv or "--help" in argv:
        sys.stdout.write(command().format_help())
        sys.stdout.write("\n".join([*render_flags(screen().width or MAX_HELP_WIDTH), ""]))
        return 0
    answer = options_to_run(["--check", *argv], program="pointsman")
    assert isinstance(answer, int)
    return answer
