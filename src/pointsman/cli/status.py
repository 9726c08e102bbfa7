"""`pointsman status`: what the running proxy is doing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pointsman.cli.live import answer_live, live_command
from pointsman.report.status import StatusReport, render_status

_ABOUT = """Show mode, syncs, pending changes, counts, watches, configuration reloads and everything that is wrong."""


def command() -> argparse.ArgumentParser:
    return live_command("status", _ABOUT)


def main(argv: Sequence[str]) -> int:
    """Return 0 when healthy or degraded, 1 when failing, 2 when no proxy answers."""
    return answer_live(command().parse_args(argv), "status", StatusReport, render_status)
