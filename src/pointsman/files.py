"""Files as several rooms see them: where a proxy keeps its own, and whether one has been replaced."""

from __future__ import annotations

import os
from pathlib import Path

RUN_DIRECTORY = Path("/run/pointsman")
"""What must survive a restart of the process and need not survive one of the node; --state-dir names another."""
CONTROL_SOCKET = RUN_DIRECTORY / "control.sock"
"""How the status commands reach the running proxy."""

Signature = tuple[int, ...]
"""Differs whenever a file was rewritten, replaced or given other rights."""


def signature_of(status: os.stat_result) -> Signature:
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def file_signature(path: Path) -> Signature | None:
    """The signature of what `path` leads to; None when that cannot be looked at."""
    try:
        return signature_of(path.stat())
    except OSError:
        return None
