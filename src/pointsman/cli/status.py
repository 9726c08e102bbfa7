"""`pointsman status`: what the running proxy is doing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pointsman.cli.live import create_live_parser, run_live
from pointsman.report.status import StatusReport, render_status

_ABOUT = """Show the mode, syncs, pending changes, object counts, watches, configuration reloads and all problems."""


def build_parser() -> argparse.ArgumentParser:
    return create_live_parser("status", _ABOUT)


def main(argv: Sequence[str]) -> int:
    """Return 0 when healthy or degraded, 1 when failing, 2 when no proxy answers."""
    return run_live(build_parser().parse_args(argv), "status", StatusReport, render_status)
