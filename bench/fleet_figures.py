"""What the readings of a fleet amount to for one proxy, and for larger clusters: arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NODES = (5000, 15000)
EVENTS_PER_SECOND = 50
SERVICES = 10000
ENDPOINTS = 10
API_SERVERS = 3
START_SECONDS = 60

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Reading:
    """The server at one moment: bytes it has sent to proxies, processor seconds, memory, descriptors."""

    at: float
    sent: int
    cpu: float
    rss_mib: float
    descriptors: int = 0


def compute_per_proxy(before: Reading, after: Reading, cpu: float, shares: int) -> dict[str, float]:
    """What one share (a proxy, or an event to a proxy) is sent, and its part of the processor seconds."""
    return {
        "sent_kb": (after.sent - before.sent) / 1000 / shares,
        "server_cpu_ms": max(0.0, cpu) * 1000 / shares,
    }


def compute_returns(stopped: float, answers: Iterable[Sequence[float]]) -> dict[str, float]:
    """How long after the first proxy to have an answer again the middle and the last one had theirs.

    A proxy without an answer counts as gone for ever.
    """
    first = sorted(min((at for at in each if at >= stopped), default=math.inf) for each in answers)
    return {"half_back_s": first[len(first) // 2] - first[0], "all_back_s": first[-1] - first[0]}


def find_busiest_second(times: Iterable[float]) -> int:
    """The most of them within any one second: what back-off and jitter are there to keep low."""
    ordered, first, most = sorted(times), 0, 0
    for last, at in enumerate(ordered):
        while ordered[first] <= at - 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


def project_rows(
    lists: Sequence[Row], watches: Sequence[Row], nodes: Sequence[int] = NODES
) -> Iterator[dict[str, Any]]:
    """The measured shares times the nodes. docs/evidence/scale.md says what is assumed."""
    for count in nodes:
        for watch in watches:
            empty, full = sorted(
                (row for row in lists if _same(row, watch)), key=lambda row: int(row["services"])
            )
            per_server = count / API_SERVERS
            cpu = scale_share(empty, full, "server_cpu_ms")
            yield {
                "nodes": count,
                "program": watch["program"],
                "protocol": watch["protocol"],
                "all_lists_gb": scale_share(empty, full, "sent_kb") * count / 1e6,
                "all_lists_cpu_s": cpu * count / 1000,
                "cores_while_all_start": cpu * per_server / 1000 / START_SECONDS,
                "watch_per_second_mb": watch["sent_kb"] * EVENTS_PER_SECOND * per_server / 1000,
                "watch_cores": watch["server_cpu_ms"] * EVENTS_PER_SECOND * per_server / 1000,
            }


def scale_share(empty: Row, full: Row, column: str) -> float:
    """A share at the size on paper: what any proxy costs, and the rest in proportion to the endpoints."""
    scale = SERVICES * ENDPOINTS / (full["services"] * full["endpoints"])
    return float(empty[column] + max(0.0, full[column] - empty[column]) * scale)


def _same(one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in ("program", "protocol"))
