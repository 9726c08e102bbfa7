"""The pictures of docs/balancing.md, drawn by bench.report from bench/results/balancing.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.svg import Curves, Point, Series, svg

COLOURS = ("grey", "orange", "blue")

Rows = Sequence[Mapping[str, Any]]


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


def curves(picture: Picture, rows: Rows) -> Curves:
    across = [float(row[picture.x]) for row in rows]
    series = (
        Series(
            line.label,
            colour,
            tuple(Point(x, float(row[line.column])) for x, row in zip(across, rows, strict=True)),
            dots=line.dots,
        )
        for line, colour in zip(picture.lines, COLOURS, strict=False)
    )
    ticks = across if len(across) < 8 else across[::5]
    return Curves(picture.title, picture.x_label, picture.y_label, tuple(series), x_ticks=tuple(ticks))


def pictures(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of every picture."""
    for name, picture in PICTURES.items():
        yield name, svg(curves(picture, results["balancing"][picture.part]))
