"""The texts of /flagz, /statusz and /healthz?verbose: for people, not for programs."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence

_NOTICE = (
    "Warning: this page is meant for people. Its layout may change at any time; do not build tools on it.\n"
)
_SECOND = 1_000_000_000


def flags_page(flags: Mapping[str, str]) -> str:
    """Every flag and its value, sorted."""
    lines = [f"{name}={flags[name]}" for name in sorted(flags)]
    return "\n".join(["", "kube-proxy flagz", _NOTICE, *lines, ""])


def healthz_text(excluded: Collection[str]) -> str:
    """Every check of the metrics port's /healthz (there is one), as kube-proxy lists them."""
    unknown = ", ".join(f'"{name}"' for name in sorted({*excluded} - {"ping"}))
    lines = ["[+]ping excluded: ok" if "ping" in excluded else "[+]ping ok"]
    if unknown:
        lines.append(f"warn: some health checks cannot be excluded: no matches for {unknown}")
    return "\n".join([*lines, "healthz check passed", ""])


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
