"""What several rounds of a measurement amount to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

RANGE = "_range"
"""A column of that ending holds the lowest and highest of the rounds behind the column it is named after."""


def percentile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of every figure, with its range where there was more than one round; what is no figure is kept."""
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
