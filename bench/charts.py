"""The main comparisons and the pictures of docs/balancing.md as charts, drawn by bench.report from bench/results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.apiserver import STREAMED
from bench.measured import RANGE
from bench.svg import Bar, Bars, Curves, Point, Series, render_svg

PACKET_COLOURS = ("grey", "blue", "orange", "green", "red")
WHERE = {"pod": "from a pod to a cluster address", "outside": "from outside to a node port"}
PICTURE_COLOURS = ("grey", "orange", "blue")
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


class Line(NamedTuple):
    """One curve: a column of the results, and what the legend calls it."""

    column: str
    label: str
    dots: bool = False


class Picture(NamedTuple):
    """A chart of some columns of one table of results."""

    part: str
    title: str
    x: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]


PICTURES = {
    "balancing-moved.svg": Picture(
        "clients_moved_by_the_loss_of_one_endpoint",
        "Clients that meet another endpoint when one goes",
        "endpoints",
        "endpoints before",
        "% of clients",
        (
            Line("by_plain_remainder_percent", "plain modulo, calculated"),
            Line("least_possible_percent", "clients of the lost endpoint", dots=True),
            Line("moved_percent", "source-hash, measured", dots=True),
        ),
    ),
    "balancing-slow-start.svg": Picture(
        "slow_start_of_30_seconds",
        "Connections of a new endpoint beside a warm one",
        "second",
        "seconds since it became ready",
        "% of connections",
        (Line("wanted_percent", "wanted"), Line("measured_percent", "measured", dots=True)),
    ),
    "balancing-fresh-replica.svg": Picture(
        "connections_of_a_fresh_replica",
        "Long-lived connections of a replica that joins two busy ones",
        "reading",
        "readings since it joined (one every five seconds)",
        "connections",
        (
            Line("average", "average of all three"),
            Line("with_random", "random, measured", dots=True),
            Line("with_least_connections", "least-connections, measured", dots=True),
        ),
    ),
}


def draw_charts(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path below docs and the text of every chart whose results exist."""
    for name, asked in OF_THE_PROCESS.items():
        yield f"charts/{name}", render_svg(chart_services(results["process"]["whole_process"], asked))
    for start in ("pod", "outside"):
        yield (
            f"charts/connect-from-{start}.svg",
            render_svg(chart_packets(results["packets"]["packets"], start)),
        )
    for name, (part, column, title, unit) in OF_THE_FLEET.items():
        if "fleet" in results:
            yield f"charts/{name}", render_svg(chart_fleet(results["fleet"][part], column, title, unit))
    if "slo" in results:
        yield "charts/slo-latency.svg", render_svg(chart_latency(results["slo"]["changes"]))
    for name, picture in PICTURES.items():
        yield name, render_svg(chart_balancing(picture, results["balancing"][picture.part]))


def chart_services(rows: Rows, asked: Comparison) -> Curves:
    """A curve for each program that was measured, with streamed lists where there were others as well."""
    found: dict[str, list[Point]] = {}
    for row in rows:
        if row["services"] and row.get(asked.column) and row.get("lists", STREAMED) == STREAMED:
            low, high = row.get(asked.column + RANGE, (None, None))
            found.setdefault(row["program"], []).append(Point(row["services"], row[asked.column], low, high))
    series = (Series(program, COLOURS[program], tuple(sorted(points))) for program, points in found.items())
    return Curves(asked.title, "Services", asked.unit, tuple(series), logarithmic=True)


def chart_packets(rows: Rows, start: str) -> Curves:
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


def chart_fleet(rows: Rows, column: str, title: str, unit: str) -> Bars:
    """A bar for each program and protocol; rows of a cluster without Services are not the ones to compare."""
    bars = (
        Bar(f"{row['program']}, {row['protocol']}", COLOURS[row["program"]], row[column])
        for row in rows
        if row.get("services") != 0
    )
    return Bars(title, unit, tuple(bars))


def chart_latency(rows: Rows) -> Curves:
    """A curve for each program, with the most Services that were measured; rows without changes have no latency."""
    most = max(row["services"] for row in rows)
    found: dict[str, list[Point]] = {}
    for row in rows:
        if row["services"] == most and row["changes_per_second"]:
            found.setdefault(row["program"], []).append(Point(row["changes_per_second"], row["mean_ms"]))
    series = (Series(program, COLOURS[program], tuple(points)) for program, points in found.items())
    title = f"Mean time from a change to the rules in the kernel, {most:,} Services"
    return Curves(title, "changes per second", "milliseconds", tuple(series), logarithmic=True)


def chart_balancing(picture: Picture, rows: Rows) -> Curves:
    across = [float(row[picture.x]) for row in rows]
    series = (
        Series(
            line.label,
            colour,
            tuple(Point(x, float(row[line.column])) for x, row in zip(across, rows, strict=True)),
            dots=line.dots,
        )
        for line, colour in zip(picture.lines, PICTURE_COLOURS, strict=False)
    )
    ticks = across if len(across) < 8 else across[::5]
    return Curves(picture.title, picture.x_label, picture.y_label, tuple(series), x_ticks=tuple(ticks))
