"""Two commits in turns, on one machine: python -m bench compare A B, and what changed beyond noise.

Every round starts the process of either commit against the same API server, as bench process does. A figure counts as changed
when no round of one commit reaches the range of the other.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.apiserver import STREAMED
from bench.measured import RANGE, print_table
from bench.process import add_settle, measure
from bench.proxies import Program, describe_ours

ROOT = Path(__file__).parents[1]
MIN_ROUNDS = 4
"""With fewer, ranges of equal programs are too often apart by chance: 1 in 35 with four rounds each."""


def check_out(commit: str, directory: Path) -> Program:
    """The program as it was at a commit."""
    where = ["git", "-C", str(ROOT)]
    name = subprocess.run(
        [*where, "describe", "--always", commit], capture_output=True, text=True, check=True
    )
    archive = subprocess.run([*where, "archive", commit, "src"], capture_output=True, check=True)
    target = directory / commit.replace("/", "-")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(target, filter="data")
    return describe_ours(f"{commit} ({name.stdout.strip()})", str(target / "src"))


def compare_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for every figure that both have, with the ranges of their rounds."""
    for name, was in before.items():
        if f"{name}{RANGE}" in before and f"{name}{RANGE}" in after:
            (low, high), (other_low, other_high) = before[f"{name}{RANGE}"], after[f"{name}{RANGE}"]
            direction = "less" if other_high < low else "more" if other_low > high else ""
            yield {
                "services": before["services"],
                "figure": name,
                "before": was,
                "after": after[name],
                "change_percent": 100 * (after[name] / was - 1) if was else 0.0,
                "beyond_noise": direction,
            }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("commits", nargs=2, metavar="COMMIT")
    parser.add_argument("--sizes", default="1000x10,10000x10")
    parser.add_argument("--lists", default=STREAMED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", default="nftables")
    parser.add_argument("--changes", type=int, default=10)
    add_settle(parser)
    parser.set_defaults(host_checks=0.0, large=False, sizing=False)


def run(options: argparse.Namespace) -> Any:
    if options.rounds < MIN_ROUNDS:
        raise SystemExit(f"--rounds must be at least {MIN_ROUNDS}: fewer are within noise")
    with tempfile.TemporaryDirectory() as directory:
        programs = [check_out(commit, Path(directory)) for commit in options.commits]
        server, sizes = measure(programs, options)
    found = [row for before, after in sizes for row in compare_rows(before, after)]
    print_table(found)
    return {"server": server, "changes": found}
