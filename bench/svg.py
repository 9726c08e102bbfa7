"""Small charts as SVG documents of their own: curves over linear or logarithmic axes, and bars; for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 30, 44, 64
BAR_LEFT, BAR_STEP = 190, 30
LEGEND_STEP, LEGEND_ROW, LEGEND_COLUMNS = 200, 18, 3
STYLE = """\
<style>
svg { background: #ffffff; } text { fill: #1f2328; }
.grid { stroke: #d8dee4; } .s { fill: none; stroke-width: 2; } .bar { stroke-width: 1.5; }
.blue { stroke: #1d4ed8; } .orange { stroke: #c2410c; } .grey { stroke: #848d97; } .green { stroke: #15803d; }
.red { stroke: #be185d; } .red-fill { fill: #be185d; }
.blue-fill { fill: #1d4ed8; } .orange-fill { fill: #c2410c; } .grey-fill { fill: #848d97; } .green-fill { fill: #15803d; }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117; } text { fill: #e6edf3; } .grid { stroke: #30363d; }
.blue { stroke: #79a8ff; } .orange { stroke: #ff9d5c; } .green { stroke: #4ade80; }
.red { stroke: #f9a8d4; } .red-fill { fill: #f9a8d4; }
.blue-fill { fill: #79a8ff; } .orange-fill { fill: #ff9d5c; } .green-fill { fill: #4ade80; }
}
</style>"""


class Point(NamedTuple):
    """A value, and the lowest and highest of its rounds where there were several."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    label: str
    colour: str
    points: tuple[Point, ...]
    dots: bool = True


class Curves(NamedTuple):
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    logarithmic: bool = False
    x_ticks: tuple[float, ...] = ()


class Bar(NamedTuple):
    label: str
    colour: str
    value: float


class Bars(NamedTuple):
    title: str
    unit: str
    bars: tuple[Bar, ...]


def render_svg(chart: Curves | Bars) -> str:
    """The chart as a document."""
    parts = _curves(chart) if isinstance(chart, Curves) else _bars(chart)
    return "\n".join(parts) + "\n"


def _begin(title: str, height: int, corner: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield f"<title>{escape(title)}</title>"
    yield STYLE
    yield f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(title)}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="20" text-anchor="end">{escape(corner)}</text>'


def _curves(chart: Curves) -> Iterator[str]:
    points = [point for series in chart.series for point in series.points]
    values = [y for point in points for y in (point.y, point.low, point.high) if y is not None]
    scale = _logarithmic if chart.logarithmic else _linear
    across = scale(sorted({point.x for point in points}), WIDTH - LEFT - RIGHT)
    y_ticks = list_decades(min(values), max(values)) if chart.logarithmic else list_quarters(max(values))
    up = scale(y_ticks, HEIGHT - TOP - BOTTOM)

    def place(x: float, y: float) -> tuple[float, float]:
        return round(LEFT + across(x), 1), round(HEIGHT - BOTTOM - up(y), 1)

    rows = (len(chart.series) + LEGEND_COLUMNS - 1) // LEGEND_COLUMNS
    yield from _begin(chart.title, HEIGHT + (rows - 1) * LEGEND_ROW, chart.y_label)
    for value in y_ticks:
        y = place(points[0].x, value)[1]
        yield f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:,g}</text>'
    for x in chart.x_ticks or sorted({point.x for point in points}):
        at = place(x, y_ticks[0])[0]
        yield f'<text x="{at}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_number(x)}</text>'
    yield (
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM + 32}" text-anchor="end">{escape(chart.x_label)}</text>'
    )
    for number, series in enumerate(chart.series):
        yield from _one(series, place)
        row, column = divmod(number, LEGEND_COLUMNS)
        x, y = 16 + column * LEGEND_STEP, HEIGHT - 14 + row * LEGEND_ROW
        yield f'<path class="s {series.colour}" d="M{x} {y}h18"/>'
        yield f'<text x="{x + 22}" y="{y + 4}" font-size="11">{escape(series.label)}</text>'
    yield "</svg>"


def _one(series: Series, place: Callable[[float, float], tuple[float, float]]) -> Iterator[str]:
    placed = [place(point.x, point.y) for point in series.points]
    path = "L".join(f"{x} {y}" for x, y in placed)
    yield f'<path class="s {series.colour}" d="M{path}"/>'
    for point, (x, y) in zip(series.points, placed, strict=True):
        if point.low is not None and point.high is not None:
            low, high = place(point.x, point.low)[1], place(point.x, point.high)[1]
            yield f'<path class="bar {series.colour}" d="M{x} {low}V{high}M{x - 4} {low}h8M{x - 4} {high}h8"/>'
        if series.dots:
            yield f'<circle class="{series.colour}-fill" cx="{x}" cy="{y}" r="2.5"/>'


def _bars(chart: Bars) -> Iterator[str]:
    longest = max(bar.value for bar in chart.bars) or 1.0
    height = TOP + BAR_STEP * len(chart.bars) + 12
    yield from _begin(chart.title, height, chart.unit)
    for number, bar in enumerate(chart.bars):
        y, length = TOP + BAR_STEP * number, round((WIDTH - BAR_LEFT - 90) * bar.value / longest, 1)
        yield f'<text x="{BAR_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>'
        yield f'<rect class="{bar.colour}-fill" x="{BAR_LEFT}" y="{y}" width="{length}" height="20"/>'
        yield f'<text x="{BAR_LEFT + length + 6}" y="{y + 14}">{bar.value:,.3g}</text>'
    yield "</svg>"


def _linear(values: Sequence[float], length: float) -> Callable[[float], float]:
    low, high = values[0], values[-1]
    return lambda value: length * (value - low) / ((high - low) or 1.0)


def _logarithmic(values: Sequence[float], length: float) -> Callable[[float], float]:
    scale = _linear([math.log10(values[0]), math.log10(values[-1])], length)
    return lambda value: scale(math.log10(value))


def list_decades(low: float, high: float) -> list[float]:
    """Powers of ten around the values."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def list_quarters(highest: float) -> list[float]:
    """From nothing to a round number not below the highest, in four steps."""
    step = 10.0 ** math.floor(math.log10(highest)) if highest > 0 else 1.0
    top = next(step * factor for factor in (1, 2, 4, 6, 8, 10) if step * factor >= highest)
    return [top * part / 4 for part in range(5)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
