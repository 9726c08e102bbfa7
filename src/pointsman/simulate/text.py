"""A simulation as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pointsman.model.decision import State
from pointsman.screen import Screen, Table, Tone, lay_out
from pointsman.simulate.report import (
    Exceeded,
    SimulationReport,
    TrafficChange,
    compute_cross_zone,
    sort_worst_first,
)
from pointsman.simulate.traffic import HintUse, PortTraffic, Simulation, Unserved
from pointsman.text import format_count

MAX_ROWS = 20
_MAX_GROWN = 10
_MAX_DETAILED = 5
"""With so few kinds of traffic, their endpoints are listed as well."""
_TONES = {State.HEALTHY.value: Tone.GOOD, State.PARTIAL.value: Tone.WARNING, State.DOWN.value: Tone.BAD}
_ARROW = " -> "
HEADING = (
    *("SERVICE PORT", "CLIENTS", "STATE", "SERVED", "ENDPOINTS", "SKEW"),
    *("SAME NODE", "SAME ZONE", "CROSS ZONE"),
)
CHANGE_HEADING = ("SERVICE PORT", "CLIENTS", "STATE", "SERVED", "LARGEST SHARE", "SKEW", "CROSS ZONE")


def render_report(report: SimulationReport, screen: Screen) -> str:
    """Return everything that fits a terminal; `-o json` has all rows."""
    return lay_out(_list_content(report), screen)


def _list_content(report: SimulationReport) -> Iterator[str | Table]:
    yield from _render_summary(report)
    yield ""
    if report.changed is None:
        yield from _render_current(report.current)
    elif report.changes:
        yield from _render_changes(report.changes)
    else:
        yield "Nothing changes."
    for exceeded in report.exceeded[:MAX_ROWS]:
        yield f"✗ {render_exceeded(exceeded)}"
    if len(report.exceeded) > MAX_ROWS:
        yield f"  and {len(report.exceeded) - MAX_ROWS} more limits exceeded"
    if report.changed is not None:
        yield ""
        yield render_verdict(report)


def render_verdict(report: SimulationReport) -> str:
    """Return the result of a change in one line."""
    down = sum(change.goes_down for change in report.changes)
    worse = sum(change.worsens for change in report.changes) - down
    if report.is_safe and not worse:
        return "✓ Result: all clients that are served now are served after the change"
    texts = []
    if down:
        texts.append(f"{format_count(down, 'service port')} down")
    if worse:
        texts.append(f"{format_count(worse, 'service port')} without an answer for some clients")
    if report.exceeded:
        texts.append(f"{format_count(len(report.exceeded), 'limit')} exceeded")
    return f"{'!' if report.is_safe else '✗'} Result: {', '.join(texts)}"


def _render_summary(report: SimulationReport) -> Iterator[str]:
    current, changed = report.current, report.changed
    cluster = [format_count(current.services, "Service"), _count_nodes(current)]
    yield f"{', '.join(cluster)}; clients {current.clients}"
    crossing = render_percent(compute_cross_zone(current))
    if changed is not None:
        yield f"After the change: {_count_nodes(changed)}"
        crossing += _ARROW + render_percent(compute_cross_zone(changed))
    if len(current.zones) > 1:
        yield f"Connections that cross zones: {crossing}"


def _count_nodes(simulation: Simulation) -> str:
    zones = [zone for zone in simulation.zones if zone]
    within = f" in {format_count(len(zones), 'zone')}" if zones else " without zones"
    return format_count(simulation.nodes, "node") + within


def _render_current(simulation: Simulation) -> Iterator[str | Table]:
    rows = sort_worst_first(simulation.traffic)
    table = [HEADING, *(build_row(one) for one in rows[:MAX_ROWS])]
    yield Table(table, _TONES, frozenset((3, 4, 5, 6, 7, 8)))
    if len(rows) > MAX_ROWS:
        yield f"and {len(rows) - MAX_ROWS} more rows; name Services, or use -o json"
    for one in rows[:MAX_ROWS]:
        yield from (f"! {one.name} ({one.family}), {one.clients}: {text}" for text in list_notes(one))
    if len(rows) <= _MAX_DETAILED:
        for one in rows:
            yield ""
            yield f"Endpoints of {one.name} ({one.family}), {one.clients} clients"
            yield Table(
                [
                    ["SHARE", "ENDPOINT", "POD", "NODE", "ZONE"],
                    *(
                        [render_percent(e.share), e.address, e.pod or "-", e.node or "-", e.zone or "-"]
                        for e in one.shares
                    ),
                ],
                numbers=frozenset((0,)),
            )


def build_row(one: PortTraffic) -> list[str]:
    """Return the cells of the traffic of one service port, below `HEADING`."""
    used = sum(endpoint.share > 0 for endpoint in one.shares)
    return [
        f"{one.name} ({one.family})",
        one.clients.value,
        one.state.value,
        render_percent(one.delivered),
        f"{used}/{len(one.shares)}",
        f"{one.skew:.2f}" if one.skew else "-",
        *map(render_percent, (one.same_node, one.same_zone, one.cross_zone)),
    ]


def list_notes(one: PortTraffic) -> Iterator[str]:
    """Yield what is wrong with it: clients without an answer, hints that are not used."""
    yield from map(render_unserved, one.unserved)
    yield from (render_hints(use) for use in one.hints if not use.mode)


def render_unserved(one: Unserved) -> str:
    """Return which clients get no answer, and why."""
    more = ", ..." if one.nodes > len(one.names) else ""
    where = f"on {format_count(one.nodes, 'node')} ({', '.join(one.names)}{more})"
    return f"{render_percent(one.share)} of the connections, {where}, are {one.outcome.value}: {one.message}"


def render_hints(use: HintUse) -> str:
    """Return for which connections hints are not used, and why."""
    return f"for {render_percent(use.share)} of the connections {use.note}"


def _render_changes(changes: tuple[TrafficChange, ...]) -> Iterator[str | Table]:
    yield Table([CHANGE_HEADING, *(build_change_row(change) for change in changes[:MAX_ROWS])], _TONES)
    if len(changes) > MAX_ROWS:
        yield f"and {len(changes) - MAX_ROWS} more rows; -o json has all"
    for change in changes[:MAX_ROWS]:
        after = change.after
        if after is not None and change.worsens:
            yield from (
                f"✗ {after.name} ({after.family}), {after.clients}: {render_unserved(one)}"
                for one in after.unserved
            )
        if change.grown:
            yield f"! {change.traffic.name} ({change.traffic.family}), {change.traffic.clients}: {render_growth(change)}"


def build_change_row(change: TrafficChange) -> list[str]:
    """Return the cells of a change, `before -> after` where they differ."""
    return [
        f"{change.traffic.name} ({change.traffic.family})",
        change.traffic.clients.value,
        *(_render_pair(change, render) for render in _CHANGE_CELLS),
    ]


def render_growth(change: TrafficChange) -> str:
    """Return which endpoints get how many times as many connections as before."""
    grown = sorted(change.grown, key=lambda one: -one.factor)
    texts = [
        f"{one.pod or one.address} {one.factor:.1f} times ({render_percent(one.before)}{_ARROW}{render_percent(one.after)})"
        for one in grown[:_MAX_GROWN]
    ]
    more = f" and {len(grown) - _MAX_GROWN} more" if len(grown) > _MAX_GROWN else ""
    return f"more connections to {', '.join(texts)}{more}"


def render_exceeded(one: Exceeded) -> str:
    """Return which limit is exceeded, by how much."""
    if one.kind == "skew":
        return f"{one.service}: skew {one.value:.2f} is above the limit of {one.limit:g}"
    return f"{render_percent(one.value)} of the connections cross zones, the limit is {render_percent(one.limit)}"


def _render_pair(change: TrafficChange, render: Callable[[PortTraffic], str]) -> str:
    before, after = (render(one) if one is not None else "none" for one in (change.before, change.after))
    return before if before == after else f"{before}{_ARROW}{after}"


def render_percent(share: float) -> str:
    """Return a fraction in percent; small ones with a digit after the point. Sums of floats differ by version of Python."""
    percent = round(share * 100, 9)
    return f"{percent:.1f}%" if 0 < percent < 10 and percent != int(percent) else f"{percent:.0f}%"


_CHANGE_CELLS: tuple[Callable[[PortTraffic], str], ...] = (
    lambda one: one.state.value,
    lambda one: render_percent(one.delivered),
    lambda one: render_percent(one.shares[0].share) if one.shares else "-",
    lambda one: f"{one.skew:.2f}" if one.skew else "-",
    lambda one: render_percent(one.cross_zone),
)
"""The columns of a change from STATE on."""
