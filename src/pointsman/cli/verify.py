"""`pointsman verify`: compare the kernel with the desired state of the running proxy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pointsman.cli.status import create_question_parser, print_asked
from pointsman.report.status import Verification, render_verification

_ABOUT = """Let the running proxy read the kernel and compare it with its plans; nothing is changed.

Lines with + are missing from the kernel, lines with - are there and should not be."""


def build_parser() -> argparse.ArgumentParser:
    return create_question_parser("verify", _ABOUT)


def main(argv: Sequence[str]) -> int:
    """Exit status 0 when equal, 1 when different, 2 when that is unknown."""
    return print_asked(build_parser().parse_args(argv), "verify", Verification, render_verification)
