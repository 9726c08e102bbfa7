"""`pointsman check`: validate a configuration and print the effective one; nothing is run or changed."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.cli.preamble import options_to_run


def main(argv: Sequence[str]) -> int:
    """`pointsman check [flags]` is `pointsman run --check [flags]`."""
    answer = options_to_run(["--check", *argv], program="pointsman")
    assert isinstance(answer, int)
    return answer
