"""From single timings to rows of bench.packets: arithmetic only."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.measured import compute_percentile


@dataclass(frozen=True)
class Round:
    """What one path showed in one round: seconds, and bits per second."""

    connects: Sequence[float]
    round_trips: Sequence[float]
    queries: Sequence[float]
    throughput: float


def build_row(direct: Sequence[Round], service: Sequence[Round], beside: Sequence[Round]) -> dict[str, float]:
    """All rounds of a way through a Service; ratios are medians of those of each round to the direct way without a proxy.

    `beside` is the direct way on the node with the proxy, whose packets pass its rules for nothing.
    """
    connects = [seconds for each in service for seconds in each.connects]
    return {
        "connect_p10_us": compute_percentile(connects, 0.1) * 1e6,
        "connect_p50_us": compute_percentile(connects, 0.5) * 1e6,
        "connect_p99_us": compute_percentile(connects, 0.99) * 1e6,
        "connect_beside_p50_us": compute_percentile([s for each in beside for s in each.connects], 0.5) * 1e6,
        "connect_to_direct": compute_ratio(
            [compute_percentile(each.connects, 0.5) for each in service],
            [compute_percentile(each.connects, 0.5) for each in direct],
        ),
        **_typical(
            "round_trip", [each.round_trips for each in service], [each.round_trips for each in direct]
        ),
        **_typical("udp_query", [each.queries for each in service], [each.queries for each in direct]),
        "throughput_gbit": statistics.median(each.throughput for each in service) / 1e9,
        "throughput_to_direct": compute_ratio(
            [each.throughput for each in service], [each.throughput for each in direct]
        ),
    }


def _typical(
    name: str, service: Sequence[Sequence[float]], direct: Sequence[Sequence[float]]
) -> Mapping[str, float]:
    ours, theirs = ([compute_percentile(each, 0.5) for each in rounds] for rounds in (service, direct))
    return {f"{name}_p50_us": statistics.median(ours) * 1e6, f"{name}_to_direct": compute_ratio(ours, theirs)}


def compute_ratio(service: Sequence[float], direct: Sequence[float]) -> float:
    """Round by round, so that a slow moment of the machine hits both sides."""
    return statistics.median(one / other for one, other in zip(service, direct, strict=True))
