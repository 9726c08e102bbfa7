"""`pointsman status`: what the running proxy is doing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pointsman.cli.live import answer_live, live_command
from pointsman.report.status import StatusReport, status_text

_ABOUT = """Show mode, syncs, pending changes, counts, watches, configuration reloads and everything that is wrong.

Exit status: 0 no trouble, though some things may work less well than configured (degraded), 1 trouble, 2 no proxy
could be asked. With -o json the field verdict says fine, degraded or trouble, and troubles lists what is wrong."""


def command() -> argparse.ArgumentParser:
    return live_command("status", _ABOUT)


def main(argv: Sequence[str]) -> int:
    """Exit status 0 without trouble, 1 with some, 2 when no proxy answers."""
    return answer_live(command().parse_args(argv), "status", StatusReport, status_text)
