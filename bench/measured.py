"""Results of measurements: summaries of several rounds, rows and tables as text, and measurements in a child process."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

RANGE = "_range"
"""Suffix of a column that holds the lowest and highest value of the rounds."""


def compute_percentile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def summarize(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median of every figure, with its range if there was more than one round. Other values are kept."""
    row: dict[str, Any] = {}
    for name, first in rounds[0].items():
        if not isinstance(first, float):
            row[name] = first
            continue
        values = [each[name] for each in rounds if name in each]
        row[name] = statistics.median(values)
        if len(values) > 1:
            row[name + RANGE] = [min(values), max(values)]
    return row


def read_children_cpu() -> float:
    """Return the processor seconds of the programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def print_row(row: Mapping[str, Any]) -> None:
    print(" ".join(f"{name}={format_value(value)}" for name, value in row.items()), flush=True)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(rows[0])
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(format_value(row[column]) for column in columns) + " |", flush=True)


def run_child(name: str, *arguments: str) -> Any:
    """Run a benchmark in a process of its own and return the JSON in the last line that it prints."""
    command = [sys.executable, "-m", "bench", name, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])
