"""Where a proxy keeps its files, whether a file has been replaced, and how to read one with a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

RUN_DIRECTORY = Path("/run/pointsman")
"""What must survive a restart of the process and need not survive one of the node; --state-dir names another."""
CONTROL_SOCKET = RUN_DIRECTORY / "control.sock"
"""How the status commands reach the running proxy."""

_READ_BYTES = 1 << 20

Signature = tuple[int, ...]
"""Differs whenever a file was rewritten, replaced or given other rights."""


def signature_from(status: os.stat_result) -> Signature:
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def get_signature(path: Path) -> Signature | None:
    """Return the signature of the file at `path`; None when it cannot be read."""
    try:
        return signature_from(path.stat())
    except (OSError, ValueError):
        return None


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file of at most `max_bytes`.

    Raises OSError, with a message, for everything else: a FIFO or a device would block the reader or never end, and a
    huge file would take the memory of the node.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, "not a path") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        parts, length = [], 0
        while part := os.read(descriptor, min(_READ_BYTES, max_bytes + 1 - length)):
            parts.append(part)
            length += len(part)
            if length > max_bytes:
                raise OSError(errno.EFBIG, f"larger than {_format_size(max_bytes)}")
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _format_size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
