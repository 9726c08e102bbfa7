"""`pointsman status`: what the running proxy is doing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pointsman.cli.arguments import add_live, add_output, guarded, parser, print_json
from pointsman.cli.control_client import ask
from pointsman.report.status import StatusReport, status_text

_ABOUT = """Show mode, syncs, pending changes, counts, watches, configuration reloads and everything that is wrong.

Exit status: 0 no trouble known, 1 something needs attention, 2 no proxy could be asked."""


def main(argv: Sequence[str]) -> int:
    """Exit status 0 when all is well, 1 when there is trouble, 2 when no proxy answers."""
    command = parser("status", _ABOUT)
    add_output(command)
    add_live(command)
    given = command.parse_args(list(argv))
    return guarded("status", lambda: _status(given))


def _status(given: argparse.Namespace) -> int:
    status = ask(given.control_socket, "/status", StatusReport)
    if given.output == "json":
        print_json(status)
    else:
        sys.stdout.write(status_text(status))
    return 1 if status.troubles else 0
