"""The running kernel's version."""

from __future__ import annotations

import re


def kernel_version(release: str) -> tuple[int, int]:
    """Major and minor of a kernel release; (0, 0) when it makes no sense."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
