"""The answers of many nodes put side by side: what they agree on, and which of them see it otherwise. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from pointsman.conditions import Blocks
from pointsman.explain.report import Explanation, PortAnswer
from pointsman.report.overview import RowIdentity, ServiceRow
from pointsman.report.service_list import ServiceList
from pointsman.report.status import StatusReport
from pointsman.screen import PLAIN, Screen, Table, laid_out

_NODES_SHOWN = 8
_DIFFERENCES_SHOWN = 50

T = TypeVar("T")


class Position(msgspec.Struct, frozen=True):
    """What some nodes say."""

    says: str
    nodes: tuple[str, ...]


class Disagreement(msgspec.Struct, frozen=True):
    """Something that nodes see differently; the position of most nodes comes first."""

    about: str
    positions: tuple[Position, ...]


class FleetReport(msgspec.Struct, frozen=True):
    """What a command found out about all nodes."""

    heading: str
    table: tuple[tuple[str, ...], ...]
    """The first row is the heading."""
    bad: tuple[Position, ...]
    """What is wrong, and where."""
    disagreements: tuple[Disagreement, ...]
    unanswered: dict[str, str]
    """Nodes that could not be asked, and why."""

    @property
    def exit_status(self) -> int:
        """2 some node could not be asked, 1 something is wrong or seen differently, 0 all is well."""
        if self.unanswered:
            return 2
        return 1 if self.bad or self.disagreements else 0


def positions(said: Mapping[str, str]) -> tuple[Position, ...]:
    """Nodes grouped by what they say; most nodes first, then by name."""
    groups: dict[str, list[str]] = {}
    for node, says in sorted(said.items()):
        groups.setdefault(says, []).append(node)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    return tuple(Position(says, tuple(nodes)) for says, nodes in ordered)


def disagreement(about: str, said: Mapping[str, str]) -> Iterator[Disagreement]:
    """One, unless all nodes say the same."""
    found = positions(said)
    if len(found) > 1:
        yield Disagreement(about, found)


def _each(answers: Mapping[str, T], says: Callable[[T], str]) -> dict[str, str]:
    return {node: says(answer) for node, answer in answers.items()}


def fleet_status(answers: Mapping[str, StatusReport], unanswered: Mapping[str, str]) -> FleetReport:
    """Versions, modes and numbers of every node, and all their troubles."""
    rows = [("NODE", "VERSION", "MODE", "SERVICE PORTS", "ENDPOINTS", "PENDING", "HEALTH")]
    for node, status in sorted(answers.items()):
        families = status.families
        numbers = (
            "+".join(str(family.service_ports) for family in families),
            "+".join(str(family.endpoints) for family in families),
            str(sum(family.pending for family in families)),
        )
        rows.append((node, status.version, status.mode, *numbers, status.health.value))
    troubles: dict[str, list[str]] = {}
    for node, status in sorted(answers.items()):
        for condition in status.conditions:
            if condition.is_failing and condition.does_block(Blocks.SERVICES):
                troubles.setdefault(f"{condition.type}: {condition.text}", []).append(node)
    found: list[Disagreement] = []
    found += disagreement("the version", _each(answers, lambda status: status.version))
    found += disagreement("the mode", _each(answers, lambda status: status.mode))
    quiet = {node: status for node, status in answers.items() if not sum(f.pending for f in status.families)}
    found += disagreement("the number of service ports", _each(quiet, _service_ports))
    return FleetReport(
        f"{_nodes(len(answers))} answered",
        tuple(rows),
        tuple(Position(trouble, tuple(nodes)) for trouble, nodes in troubles.items()),
        tuple(found),
        dict(unanswered),
    )


def _service_ports(status: StatusReport) -> str:
    return ", ".join(f"{family.service_ports} {family.family}" for family in status.families)


def fleet_list(answers: Mapping[str, ServiceList], unanswered: Mapping[str, str]) -> FleetReport:
    """Every service port once, with how many nodes answer for it; policies Local make nodes differ rightly."""
    by_port: dict[RowIdentity, dict[str, ServiceRow]] = {}
    for node, listed in answers.items():
        for row in listed.rows:
            by_port.setdefault(row.identity, {})[node] = row
    rows = [("SERVICE", "PORT", "ADDRESS", "ENDPOINTS", "STATE")]
    found: list[Disagreement] = []
    for (service, _, _, family), rows_of in sorted(by_port.items()):
        first = next(iter(rows_of.values()))
        about = f"{service} {first.port_words} ({family})"
        said = {node: _known(rows_of.get(node)) for node in answers}
        found += disagreement(about, said)
        totals = sorted({row.total for row in rows_of.values()})
        states = positions(_each(rows_of, lambda row: row.state))
        shown = ", ".join(
            p.says if len(states) == 1 else f"{p.says} on {_named(p.nodes, len(answers))}" for p in states
        )
        rows.append(
            (
                service,
                first.port_words,
                first.frontends[0].address,
                "..".join(map(str, totals)),
                shown,
            )
        )
    heading = f"{len(by_port)} service ports on {_nodes(len(answers))}"
    return FleetReport(heading, tuple(rows), (), tuple(found), dict(unanswered))


def _known(row: ServiceRow | None) -> str:
    """What every node must know alike, whatever its place in the cluster."""
    if row is None:
        return "does not know it"
    addresses = ", ".join(sorted(frontend.address for frontend in row.frontends))
    return f"{row.total} endpoints, at {addresses}"


def fleet_explain(answers: Mapping[str, Explanation], unanswered: Mapping[str, str]) -> FleetReport:
    """Who answers, where not and why, and which nodes know of other endpoints than the rest."""
    question = next((answer.question for answer in answers.values()), "")
    rows = [("NODE", "MODE", "ANSWERS", "PORTS", "USED ENDPOINTS")]
    bad: dict[str, list[str]] = {}
    for node, answer in sorted(answers.items()):
        used = sum(any(use.used for use in e.uses) for port in answer.ports for e in port.endpoints)
        known = sum(len(port.endpoints) for port in answer.ports)
        verdict = "yes" if answer.answers else "no"
        rows.append((node, answer.mode, verdict, str(len(answer.ports)), f"{used}/{known}"))
        if not answer.answers:
            for reason in _reasons(answer):
                bad.setdefault(reason, []).append(node)
    found: list[Disagreement] = []
    ports = sorted({_port_name(port) for answer in answers.values() for port in answer.ports})
    for name in ports:
        said = {node: _endpoints_known(answer, name) for node, answer in answers.items()}
        found += disagreement(f"{name}: its endpoints", said)
    if answers and not ports:
        found += disagreement("what it is", _each(answers, lambda answer: "; ".join(_reasons(answer))))
    good = sum(answer.answers for answer in answers.values())
    return FleetReport(
        f"{question} answers on {good} of {_nodes(len(answers))}",
        tuple(rows),
        tuple(Position(reason, tuple(nodes)) for reason, nodes in bad.items()),
        tuple(found),
        dict(unanswered),
    )


def _reasons(answer: Explanation) -> list[str]:
    causes = [*answer.causes, *(cause for port in answer.ports for cause in port.causes)]
    fatal = [f"{cause.code}: {cause.message}" for cause in causes if cause.fatal]
    unanswered = [_port_name(port) for port in answer.ports if not port.answers]
    return fatal or [f"{name} does not answer every client" for name in unanswered]


def _port_name(port: PortAnswer) -> str:
    return f"{port.service} {port.port or port.number}/{port.protocol} ({port.family})"


def _endpoints_known(answer: Explanation, name: str) -> str:
    for port in answer.ports:
        if _port_name(port) == name:
            return ", ".join(sorted(endpoint.address for endpoint in port.endpoints)) or "none"
    return "does not know it"


def fleet_text(report: FleetReport, screen: Screen = PLAIN) -> str:
    """For a terminal: the table, what is wrong and where, and what nodes disagree about."""
    content: list[str | Table] = [report.heading, "", Table(report.table), ""]
    content += [f"✗ {_named(each.nodes)}: {each.says}" for each in report.bad]
    for each in report.disagreements[:_DIFFERENCES_SHOWN]:
        content.append(f"! nodes disagree about {each.about}")
        content += [f"    {_named(position.nodes)}: {position.says}" for position in each.positions]
    if len(report.disagreements) > _DIFFERENCES_SHOWN:
        content.append(f"! and {len(report.disagreements) - _DIFFERENCES_SHOWN} more; -o json lists all")
    content += [f"✗ {node} could not be asked: {why}" for node, why in sorted(report.unanswered.items())]
    if not report.exit_status:
        content.append("✓ all nodes agree")
    return laid_out(content, screen)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _named(nodes: Sequence[str], out_of: int = 0) -> str:
    if len(nodes) <= _NODES_SHOWN and (not out_of or len(nodes) * 2 <= out_of):
        return ", ".join(nodes)
    return (
        _nodes(len(nodes))
        if out_of
        else f"{', '.join(nodes[:_NODES_SHOWN])} and {len(nodes) - _NODES_SHOWN} more"
    )
