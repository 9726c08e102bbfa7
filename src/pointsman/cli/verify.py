"""`pointsman verify`: does the kernel hold what the running proxy wants it to hold?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pointsman.cli.arguments import add_live, add_output, guarded, parser, print_json
from pointsman.cli.control_client import ask
from pointsman.report.status import Verification, verification_text

_ABOUT = """Let the running proxy read the kernel and compare it with its plans; nothing is changed.

Lines with + are missing from the kernel, lines with - are there and should not be.
Exit status: 0 equal, 1 different, 2 no proxy could be asked or the kernel not read."""


def main(argv: Sequence[str]) -> int:
    """Exit status 0 when equal, 1 when different, 2 when it cannot be told."""
    command = parser("verify", _ABOUT)
    add_output(command)
    add_live(command)
    given = command.parse_args(list(argv))
    return guarded("verify", lambda: _verify(given))


def _verify(given: argparse.Namespace) -> int:
    verification = ask(given.control_socket, "/verify", Verification)
    if given.output == "json":
        print_json(verification)
    else:
        sys.stdout.write(verification_text(verification))
    return verification.exit_status
