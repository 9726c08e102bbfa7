"""Files as several rooms see them: where a proxy keeps its own, whether one has been replaced, and how to read one safely."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

RUN_DIRECTORY = Path("/run/pointsman")
"""What must survive a restart of the process and need not survive one of the node; --state-dir names another."""
CONTROL_SOCKET = RUN_DIRECTORY / "control.sock"
"""How the status commands reach the running proxy."""

_PART_BYTES = 1 << 20

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
    except (OSError, ValueError):
        return None


def read_file(path: Path, largest: int) -> bytes:
    """The content of a regular file of at most `largest` bytes.

    Raises OSError, with words that say what is wrong, for everything else: a FIFO or a device would keep the reader
    waiting or feed it for ever, and a huge file would take the memory of the node.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, "not a path") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        parts, length = [], 0
        while part := os.read(descriptor, min(_PART_BYTES, largest + 1 - length)):
            parts.append(part)
            length += len(part)
            if length > largest:
                raise OSError(errno.EFBIG, f"larger than {_size_text(largest)}")
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _size_text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
