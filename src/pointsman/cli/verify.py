"""`pointsman verify`: does the kernel hold what the running proxy wants it to hold?"""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.cli.live import answer_live
from pointsman.report.status import Verification, verification_text

_ABOUT = """Let the running proxy read the kernel and compare it with its plans; nothing is changed.

Lines with + are missing from the kernel, lines with - are there and should not be.
Exit status: 0 equal, 1 different, 2 no proxy could be asked or the kernel not read."""


def main(argv: Sequence[str]) -> int:
    """Exit status 0 when equal, 1 when different, 2 when that is unknown."""
    return answer_live(argv, "verify", _ABOUT, Verification, verification_text)
