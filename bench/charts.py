"""The main comparisons as charts: docs/charts/*.svg, drawn by bench.report from bench/results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.measured import RANGE
from bench.svg import Bar, Bars, Curves, Point, Series, svg

PACKET_COLOURS = ("grey", "blue", "orange", "green", "red")
WHERE = {"pod": "from a pod to a cluster address", "outside": "from outside to a node port"}
COLOURS = {"pointsman": "blue", "kube-proxy": "orange", "direct": "grey"}

Rows = Sequence[Mapping[str, Any]]


class Comparison(NamedTuple):
    """One column of the process results, either program, by the number of Services."""

    column: str
    title: str
    unit: str


OF_THE_PROCESS = {
    "first-sync.svg": Comparison("full_sync_s", "First sync of everything, nftables mode", "seconds"),
    "start.svg": Comparison(
        "started_to_synced_s", "From process start until all is in the kernel", "seconds"
    ),
    "one-change.svg": Comparison(
        "change_p50_ms", "Sync of one changed endpoint, nftables mode", "milliseconds"
    ),
    "memory.svg": Comparison("rss_mib", "Memory of the process", "MiB"),
}
OF_THE_FLEET = {
    "fleet-list.svg": ("first_list", "sent_kb", "Sent to one proxy for its first list", "kB"),
    "fleet-list-cpu.svg": (
        "first_list",
        "server_cpu_ms",
        "API server's time for the first list of one proxy",
        "ms",
    ),
    "fleet-event.svg": ("watch", "sent_kb", "Sent to one proxy for one changed EndpointSlice", "kB"),
}


def charts(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of every chart whose results exist."""
    for name, asked in OF_THE_PROCESS.items():
        yield name, svg(by_services(results["process"], asked))
    for start in ("pod", "outside"):
        yield f"connect-from-{start}.svg", svg(of_packets(results["packets"]["packets"], start))
    for name, (part, column, title, unit) in OF_THE_FLEET.items():
        if "fleet" in results:
            yield name, svg(of_fleet(results["fleet"][part], column, title, unit))


def by_services(rows: Rows, asked: Comparison) -> Curves:
    """A curve for each program that was measured."""
    found: dict[str, list[Point]] = {}
    for row in rows:
        if row["services"] and row.get(asked.column):
            low, high = row.get(asked.column + RANGE, (None, None))
            found.setdefault(row["program"], []).append(Point(row["services"], row[asked.column], low, high))
    series = (Series(program, COLOURS[program], tuple(sorted(points))) for program, points in found.items())
    return Curves(asked.title, "Services", asked.unit, tuple(series), logarithmic=True)


def of_packets(rows: Rows, start: str) -> Curves:
    """The time of a connect by the number of Services, a curve for each program and mode."""
    found: dict[tuple[str, str], list[Point]] = {}
    for row in rows:
        if row["from"] == start:
            point = Point(row["services"], row["connect_p50_us"])
            found.setdefault((row["program"], row["mode"]), []).append(point)
    series = (
        Series(f"{program}, {mode}" if mode else "no proxy, direct", colour, tuple(points))
        for ((program, mode), points), colour in zip(found.items(), PACKET_COLOURS, strict=False)
    )
    title = f"connect() through a Service, {WHERE[start]}, median"
    return Curves(title, "Services", "µs", tuple(series), logarithmic=True)


def of_fleet(rows: Rows, column: str, title: str, unit: str) -> Bars:
    """A bar for each program and format; rows of a cluster without Services are not the ones to compare."""
    bars = (
        Bar(f"{row['program']}, {row['format']}", COLOURS[row["program"]], row[column])
        for row in rows
        if row.get("services") != 0
    )
    return Bars(title, unit, tuple(bars))
