"""A simulation as a picture: zones and the connections between them, alone (SVG) or with the tables (HTML).

One self-contained file: no script, nothing is loaded from elsewhere.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pointsman.simulate.report import SimulationReport, TrafficChange, compute_cross_zone, sort_worst_first
from pointsman.simulate.text import (
    CHANGE_HEADING,
    HEADING,
    build_change_row,
    build_row,
    list_notes,
    render_exceeded,
    render_growth,
    render_percent,
    render_unserved,
    render_verdict,
)
from pointsman.simulate.traffic import Simulation

MAX_ROWS = 500
_MAX_ARROWS = 48
_MAX_LABELLED = 12
_MIN_AMOUNT = 0.0005
_SIZE, _RADIUS = 560, 205
_MIN_BOX_WIDTH, _MAX_BOX_WIDTH, _BOX_HEIGHT, _BOX_DISTANCE = 60, 118, 50, 6
_MAX_WIDTH = 16
_CHARACTER_WIDTH = 7.4

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #59636e; --line: #d1d9e0; --paper: #ffffff; --panel: #f6f8fa;
  --stay: #1a7f5a; --cross: #b35900; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9da7b1; --line: #3d444d; --paper: #0d1117;
  --panel: #161b22; --stay: #56d39b; --cross: #f0a35e; --bad: #ff8078; } }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); } svg .dim { fill: var(--dim); font-size: 12px; }
svg .title { font-size: 15px; font-weight: 600; }
svg .zone { fill: var(--panel); stroke: var(--stay); } svg .arrow { fill: none; stroke: var(--cross); }
svg .head { fill: var(--cross); }
"""
_PAGE_STYLE = """
body { margin: 0 auto; max-width: 1180px; padding: 16px; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 8px 0; } h2 { font-size: 17px; margin: 24px 0 8px; } p { margin: 6px 0; }
.pictures { display: flex; flex-wrap: wrap; gap: 16px; } .pictures svg { flex: 1 1 340px; max-width: 560px; height: auto; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td:last-child { white-space: normal; min-width: 280px; }
th { color: var(--dim); font-weight: 600; } .down, .bad { color: var(--bad); } .partial { color: var(--cross); }
.healthy { color: var(--stay); } .dim { color: var(--dim); }
"""


def render_svg(report: SimulationReport) -> str:
    """Return the zones as an SVG document; with a change, before and after side by side."""
    pictures = _list_pictures(report)
    zones = _list_zones(*(simulation for _, simulation in pictures))
    width = _SIZE * len(pictures)
    inner = "".join(
        f'<g transform="translate({_SIZE * index} 0)">{_draw(simulation, title, zones)}</g>'
        for index, (title, simulation) in enumerate(pictures)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_SIZE}" width="{width}" height="{_SIZE}" role="img">'
        f"<title>{_describe(report)}</title><style>{_STYLE}</style>{inner}</svg>\n"
    )


def render_html(report: SimulationReport) -> str:
    """Return a page with the pictures, the verdict, and a table of changes or of all service ports."""
    pictures = _list_pictures(report)
    zones = _list_zones(*(simulation for _, simulation in pictures))
    figures = "".join(
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" role="img" aria-label="{html.escape(title)}: {_describe_crossing(simulation)}">'
        f"{_draw(simulation, title, zones)}</svg>"
        for title, simulation in pictures
    )
    parts = [
        f"<h1>{'What if: traffic after a change' if report.changed else 'Traffic of the cluster'}</h1>",
        f'<p class="dim">{html.escape(_describe_cluster(report))}</p>',
        *_render_results(report),
        f'<div class="pictures">{figures}</div>',
        *(_render_changes(report.changes) if report.changed else _render_traffic(report.current)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Pointsman simulation</title><style>{_STYLE}{_PAGE_STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _list_pictures(report: SimulationReport) -> list[tuple[str, Simulation]]:
    if report.changed is None:
        return [("Now", report.current)]
    return [("Now", report.current), ("After the change", report.changed)]


def _describe(report: SimulationReport) -> str:
    return "; ".join(f"{title}: {_describe_crossing(one)}" for title, one in _list_pictures(report))


def _describe_crossing(simulation: Simulation) -> str:
    return f"{render_percent(compute_cross_zone(simulation))} of the connections cross zones"


def _describe_cluster(report: SimulationReport) -> str:
    one = report.current
    return f"{one.services} Services, {one.nodes} nodes, {len(one.zones)} zones; clients {one.clients}"


def _draw(simulation: Simulation, title: str, all_zones: Sequence[str]) -> str:
    """Zones on a circle, at the same place in every picture; an arrow is as wide as its part of all connections."""
    places = {zone: _compute_place(index, len(all_zones)) for index, zone in enumerate(all_zones)}
    box_width = _compute_box_width(list(places.values()))
    zones = _list_zones(simulation)
    arrows = [
        (amount, source, target)
        for source, targets in simulation.flows.items()
        for target, amount in targets.items()
        if source != target and amount >= _MIN_AMOUNT
    ]
    arrows.sort(reverse=True)
    with_text = len(arrows) <= _MAX_LABELLED
    drawn = "".join(
        _draw_arrow(places, box_width, *arrow, with_text=with_text)
        for arrow in reversed(arrows[:_MAX_ARROWS])
    )
    boxes = "".join(
        _draw_zone(zone, places[zone], box_width, simulation.flows.get(zone, {})) for zone in zones
    )
    more = f" (the largest {_MAX_ARROWS} of {len(arrows)} arrows)" if len(arrows) > _MAX_ARROWS else ""
    return (
        f'<text class="title" x="16" y="26">{html.escape(title)}</text>'
        f'<text class="dim" x="16" y="46">{_describe_crossing(simulation)}{more}</text>{drawn}{boxes}'
    )


def _list_zones(*simulations: Simulation) -> list[str]:
    """Return every zone with nodes, clients or endpoints."""
    found: dict[str, None] = {}
    for simulation in simulations:
        found |= dict.fromkeys((*simulation.zones, *simulation.flows))
        for targets in simulation.flows.values():
            found |= dict.fromkeys(targets)
    return list(found)


def _compute_place(index: int, count: int) -> tuple[float, float]:
    radius = _RADIUS if count > 1 else 0
    angle = 2 * math.pi * index / count - math.pi / 2
    return _SIZE / 2 + radius * math.cos(angle), _SIZE / 2 + 22 + radius * math.sin(angle)


def _compute_box_width(centres: Sequence[tuple[float, float]]) -> float:
    """Return a width with which neighbours on the circle do not cover each other."""
    gaps = [
        abs(x1 - x2)
        for (x1, y1), (x2, y2) in itertools.pairwise((*centres, centres[0]))
        if abs(x1 - x2) > 0 and abs(y1 - y2) < _BOX_HEIGHT
    ]
    return max(_MIN_BOX_WIDTH, min((_MAX_BOX_WIDTH, *(gap - _BOX_DISTANCE for gap in gaps))))


def _draw_zone(zone: str, place: tuple[float, float], box_width: float, targets: Mapping[str, float]) -> str:
    x, y = place
    total = sum(targets.values())
    note = f"{render_percent(targets.get(zone, 0.0) / total)} stays" if total else "no clients"
    name = zone or "no zone"
    limit = int(box_width / _CHARACTER_WIDTH)
    if len(name) > limit:
        name = f"…{name[1 - limit :]}"
    return (
        f"<g><title>{html.escape(zone or 'no zone')}: {note}</title>"
        f'<rect class="zone" x="{x - box_width / 2:.0f}" y="{y - _BOX_HEIGHT / 2:.0f}" width="{box_width:.0f}" '
        f'height="{_BOX_HEIGHT}" rx="8"/>'
        f'<text x="{x:.0f}" y="{y - 4:.0f}" text-anchor="middle">{html.escape(name)}</text>'
        f'<text class="dim" x="{x:.0f}" y="{y + 14:.0f}" text-anchor="middle">{note}</text></g>'
    )


def _draw_arrow(
    places: Mapping[str, tuple[float, float]],
    box_width: float,
    amount: float,
    source: str,
    target: str,
    *,
    with_text: bool,
) -> str:
    """A curve that bends to its right, so that the way back is beside it, up to the box of the target."""
    (x1, y1), (x2, y2) = places[source], places[target]
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    bend = 0.12 * length
    cx, cy = (x1 + x2) / 2 - (y2 - y1) / length * bend, (y1 + y2) / 2 + (x2 - x1) / length * bend
    angle = math.atan2(y2 - cy, x2 - cx)
    dx, dy = math.cos(angle), math.sin(angle)
    distance = min(box_width / 2 / max(abs(dx), 0.01), _BOX_HEIGHT / 2 / max(abs(dy), 0.01))
    width = max(0.75, min(_MAX_WIDTH, amount * 100))
    head = 6 + width
    tip_x, tip_y = x2 - dx * distance, y2 - dy * distance
    end_x, end_y = tip_x - dx * head, tip_y - dy * head
    sides = (
        (end_x - dy * head * 0.6, end_y + dx * head * 0.6),
        (end_x + dy * head * 0.6, end_y - dx * head * 0.6),
    )
    points = " ".join(f"{x:.0f},{y:.0f}" for x, y in ((tip_x, tip_y), *sides))
    text = f"{source or 'no zone'} to {target or 'no zone'}: {render_percent(amount)} of all connections"
    label_x, label_y = (x1 + 2 * cx + x2) / 4, (y1 + 2 * cy + y2) / 4 + 4
    label = f'<text x="{label_x:.0f}" y="{label_y:.0f}" text-anchor="middle">{render_percent(amount)}</text>'
    return (
        f'<g><title>{html.escape(text)}</title><g opacity="0.5">'
        f'<path class="arrow" d="M{x1:.0f} {y1:.0f}Q{cx:.0f} {cy:.0f} {end_x:.0f} {end_y:.0f}" stroke-width="{width:.1f}"/>'
        f'<polygon class="head" points="{points}"/></g>{label if with_text else ""}</g>'
    )


def _render_results(report: SimulationReport) -> Iterator[str]:
    if report.changed is not None:
        yield _render_line(render_verdict(report))
    for exceeded in report.exceeded[:MAX_ROWS]:
        yield _render_line(f"✗ {render_exceeded(exceeded)}")


def _render_line(text: str) -> str:
    level = {"✓": "healthy", "!": "partial", "✗": "bad"}.get(text[:1], "")
    return f'<p class="{level}">{html.escape(text)}</p>'


def _render_changes(changes: Sequence[TrafficChange]) -> Iterator[str]:
    yield "<h2>Changes</h2>"
    if not changes:
        yield "<p>Nothing changes.</p>"
        return
    rows = []
    for change in changes[:MAX_ROWS]:
        notes = (
            [render_unserved(one) for one in change.after.unserved] if change.after and change.worsens else []
        )
        notes += [render_growth(change)] if change.grown else []
        rows.append((*build_change_row(change), "; ".join(notes)))
    yield _render_table(CHANGE_HEADING, rows, len(changes))


def _render_traffic(simulation: Simulation) -> Iterator[str]:
    yield "<h2>Service ports</h2>"
    rows = [
        (*build_row(one), "; ".join(list_notes(one)))
        for one in sort_worst_first(simulation.traffic)[:MAX_ROWS]
    ]
    yield _render_table(HEADING, rows, len(simulation.traffic))


def _render_table(heading: Iterable[str], rows: Sequence[Sequence[str]], total: int) -> str:
    head = "".join(f'<th scope="col">{cell.capitalize()}</th>' for cell in (*heading, "notes"))
    body = "".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in rows)
    more = f'<p class="dim">and {total - len(rows)} more</p>' if total > len(rows) else ""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'
    )


def _render_cell(text: str) -> str:
    state = text.rpartition(" ")[2]
    level = f' class="{state}"' if state in ("healthy", "partial", "down") else ""
    return f"<td{level}>{html.escape(text)}</td>"
