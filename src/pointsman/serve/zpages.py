"""The texts of /flagz and /statusz: for people, not for programs."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence

_NOTICE = (
    "Warning: this page is meant for people. Its layout may change at any time; do not build tools on it.\n"
)
_SECOND = 1_000_000_000


def flags_page(flags: Mapping[str, str]) -> str:
    """Every flag and its value, sorted."""
    lines = [f"{name}={flags[name]}" for name in sorted(flags)]
    return "\n".join(["", "kube-proxy flagz", _NOTICE, *lines, ""])


def uptime_text(nanoseconds: int) -> str:
    minutes, seconds = divmod(nanoseconds // _SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} hr {minutes:02d} min {seconds:02d} sec"


def status_page(
    version: str,
    paths: Sequence[str],
    *,
    wall: Callable[[], int] = time.time_ns,
    monotonic: Callable[[], int] = time.monotonic_ns,
) -> Callable[[], str]:
    """A function giving the page; the moment of this call counts as the start."""
    started = time.strftime("%a %b %e %H:%M:%S UTC %Y", time.gmtime(wall() // _SECOND))
    began = monotonic()

    def page() -> str:
        return "\n".join(
            [
                "",
                "kube-proxy statusz",
                _NOTICE,
                f"Started: {started}",
                f"Up: {uptime_text(monotonic() - began)}",
                f"Python version: {platform.python_version()}",
                f"Binary version: {version}",
                "",
                f"Paths: {' '.join(paths)}",
                "",
            ]
        )

    return page
