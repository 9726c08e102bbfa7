"""Draws the pictures of docs/balancing.md from bench/results/balancing.json, so that no curve is drawn by hand.

python -m bench.pictures    write docs/balancing-*.svg
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "balancing.json"

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 64
COLOURS = ("#888888", "#c2410c", "#1d4ed8")

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
        "Connections of a newcomer beside a warm one",
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


def svg(picture: Picture, rows: Rows) -> str:
    """The chart as a document of its own, readable on light and dark pages."""
    return "\n".join(_parts(picture, rows)) + "\n"


def _parts(picture: Picture, rows: Rows) -> Iterator[str]:
    across = [float(row[picture.x]) for row in rows]
    top = _ceiling(max(float(row[line.column]) for row in rows for line in picture.lines))

    def place(x: float, y: float) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        share = (x - across[0]) / (across[-1] - across[0])
        return round(LEFT + wide * share, 1), round(HEIGHT - BOTTOM - high * y / top, 1)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield f"<title>{picture.title}</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{picture.title}</text>'
    for step in range(5):
        value = top * step / 4
        _, y = place(across[0], value)
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:g}</text>'
    for x in across if len(across) < 8 else across[::5]:
        yield f'<text x="{place(x, 0)[0]}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM + 32}" text-anchor="end">{picture.x_label}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="20" text-anchor="end">{picture.y_label}</text>'
    for number, (line, colour) in enumerate(zip(picture.lines, COLOURS, strict=False)):
        points = [place(x, float(row[line.column])) for x, row in zip(across, rows, strict=True)]
        path = "L".join(f"{x} {y}" for x, y in points)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        if line.dots:
            yield from (f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>' for x, y in points)
        at = LEFT + number * 195
        yield f'<path d="M{at} {HEIGHT - 14}h18" stroke="{colour}" stroke-width="2"/>'
        yield f'<text x="{at + 22}" y="{HEIGHT - 10}" font-size="11">{line.label}</text>'
    yield "</svg>"


def _ceiling(value: float) -> float:
    """A round number not below the value."""
    step = 1.0
    while step * 10 < value:
        step *= 10
    return next(step * factor for factor in (1, 2, 4, 6, 8, 10) if step * factor >= value)


def pictures() -> dict[Path, str]:
    """Every picture as the kept results have it."""
    results = json.loads(RESULTS.read_text())
    return {ROOT / "docs" / name: svg(drawn, results[drawn.part]) for name, drawn in PICTURES.items()}


if __name__ == "__main__":
    for path, text in pictures().items():
        path.write_text(text)
        print(f"{path.relative_to(ROOT)} written")
