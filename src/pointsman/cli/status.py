"""`pointsman status`: what the running proxy is doing."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.cli.live import answer_live
from pointsman.report.status import StatusReport, status_text

_ABOUT = """Show mode, syncs, pending changes, counts, watches, configuration reloads and everything that is wrong.

Exit status: 0 no known problems, 1 something needs attention, 2 no proxy could be asked."""


def main(argv: Sequence[str]) -> int:
    """Exit status 0 without known problems, 1 with some, 2 when no proxy answers."""
    return answer_live(argv, "status", _ABOUT, StatusReport, status_text)
