"""The answers of many nodes put side by side: what they agree on, and which of them see it otherwise. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from pointsman.conditions import Blocks
from pointsman.explain.service_port import Explanation, Identity, ServicePortReport
from pointsman.report.service_list import ServiceList
from pointsman.report.status import StatusReport
from pointsman.screen import PLAIN, Screen, Table, laid_out
from pointsman.text import count_text, join_some

_MAX_NODES_SHOWN = 8
_MAX_DISAGREEMENTS_SHOWN = 50

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
    """Versions, modes and numbers of every node, and all failing conditions."""
    rows = [("NODE", "VERSION", "MODE", "SERVICE PORTS", "ENDPOINTS", "PENDING", "HEALTH")]
    for node, status in sorted(answers.items()):
        families = status.families
        numbers = (
            "+".join(str(family.service_ports) for family in families),
            "+".join(str(family.endpoints) for family in families),
            str(sum(family.pending for family in families)),
        )
        rows.append((node, status.version, status.mode, *numbers, status.health.value))
    failing: dict[str, list[str]] = {}
    for node, status in sorted(answers.items()):
        for condition in status.conditions:
            if condition.is_failing and condition.does_block(Blocks.SERVICES):
                failing.setdefault(f"{condition.type}: {condition.text}", []).append(node)
    found: list[Disagreement] = []
    found += disagreement("the version", _each(answers, lambda status: status.version))
    found += disagreement("the mode", _each(answers, lambda status: status.mode))
    quiet = {node: status for node, status in answers.items() if not sum(f.pending for f in status.families)}
    found += disagreement("the number of service ports", _each(quiet, _service_ports))
    return FleetReport(
        f"{count_text(len(answers), 'node')} answered",
        tuple(rows),
        tuple(Position(text, tuple(nodes)) for text, nodes in failing.items()),
        tuple(found),
        dict(unanswered),
    )


def _service_ports(status: StatusReport) -> str:
    return ", ".join(f"{family.service_ports} {family.family}" for family in status.families)


def fleet_list(answers: Mapping[str, ServiceList], unanswered: Mapping[str, str]) -> FleetReport:
    """Build a table with every service port once, and its state by node; policy Local makes nodes differ rightly."""
    by_port: dict[Identity, dict[str, ServicePortReport]] = {}
    for node, answer in answers.items():
        for port in answer.ports:
            by_port.setdefault(port.identity, {})[node] = port
    rows = [("SERVICE", "PORT", "ADDRESS", "ENDPOINTS", "STATE")]
    found: list[Disagreement] = []
    for _, ports in sorted(by_port.items()):
        first = next(iter(ports.values()))
        found += disagreement(_port_name(first), {node: _describe(ports.get(node)) for node in answers})
        totals = sorted({port.total for port in ports.values()})
        states = positions(_each(ports, lambda port: port.state))
        shown = ", ".join(
            p.says if len(states) == 1 else f"{p.says} on {_name_nodes(p.nodes, len(answers))}"
            for p in states
        )
        endpoints = "..".join(map(str, totals))
        rows.append((first.service, first.port_text, first.frontends[0].address, endpoints, shown))
    heading = f"{count_text(len(by_port), 'service port')} on {count_text(len(answers), 'node')}"
    return FleetReport(heading, tuple(rows), (), tuple(found), dict(unanswered))


def _describe(port: ServicePortReport | None) -> str:
    """Return what must be the same on every node, wherever it is in the cluster."""
    if port is None:
        return "unknown"
    addresses = ", ".join(sorted(frontend.address for frontend in port.frontends))
    return f"{port.total} endpoints, at {addresses}"


def fleet_explain(answers: Mapping[str, Explanation], unanswered: Mapping[str, str]) -> FleetReport:
    """Build a table of where it is healthy, where not and why, and which nodes know of other endpoints."""
    question = next((answer.question for answer in answers.values()), "")
    rows = [("NODE", "MODE", "HEALTHY", "PORTS", "USED ENDPOINTS")]
    bad: dict[str, list[str]] = {}
    for node, answer in sorted(answers.items()):
        used = sum(any(use.used for use in e.uses) for port in answer.ports for e in port.endpoints)
        known = sum(len(port.endpoints) for port in answer.ports)
        healthy = "yes" if answer.is_healthy else "no"
        rows.append((node, answer.mode, healthy, str(len(answer.ports)), f"{used}/{known}"))
        if not answer.is_healthy:
            for reason in _reasons(answer):
                bad.setdefault(reason, []).append(node)
    found: list[Disagreement] = []
    names = sorted({_port_name(port) for answer in answers.values() for port in answer.ports})
    for name in names:
        said = {node: _list_endpoints(answer, name) for node, answer in answers.items()}
        found += disagreement(f"the endpoints of {name}", said)
    if answers and not names:
        found += disagreement("what it is", _each(answers, lambda answer: "; ".join(_reasons(answer))))
    good = sum(answer.is_healthy for answer in answers.values())
    return FleetReport(
        f"{question} is healthy on {good} of {count_text(len(answers), 'node')}",
        tuple(rows),
        tuple(Position(reason, tuple(nodes)) for reason, nodes in bad.items()),
        tuple(found),
        dict(unanswered),
    )


def _reasons(answer: Explanation) -> list[str]:
    findings = [*answer.findings, *(finding for port in answer.ports for finding in port.findings)]
    errors = [f"{finding.code}: {finding.message}" for finding in findings if finding.is_error]
    return errors or [f"{_port_name(port)} is {port.state}" for port in answer.ports if not port.is_healthy]


def _port_name(port: ServicePortReport) -> str:
    return f"{port.name} {port.protocol} ({port.family})"


def _list_endpoints(answer: Explanation, name: str) -> str:
    for port in answer.ports:
        if _port_name(port) == name:
            return ", ".join(sorted(endpoint.address for endpoint in port.endpoints)) or "none"
    return "unknown"


def fleet_text(report: FleetReport, screen: Screen = PLAIN) -> str:
    """For a terminal: the table, what is wrong and where, and what nodes disagree about."""
    content: list[str | Table] = [report.heading, "", Table(report.table), ""]
    content += [f"✗ {_name_nodes(each.nodes)}: {each.says}" for each in report.bad]
    for each in report.disagreements[:_MAX_DISAGREEMENTS_SHOWN]:
        content.append(f"! nodes disagree about {each.about}")
        content += [f"    {_name_nodes(position.nodes)}: {position.says}" for position in each.positions]
    if len(report.disagreements) > _MAX_DISAGREEMENTS_SHOWN:
        content.append(
            f"! and {len(report.disagreements) - _MAX_DISAGREEMENTS_SHOWN} more; -o json lists all"
        )
    content += [f"✗ {node} could not be asked: {why}" for node, why in sorted(report.unanswered.items())]
    if not report.exit_status:
        content.append("✓ all nodes agree")
    return laid_out(content, screen)


def _name_nodes(nodes: Sequence[str], out_of: int = 0) -> str:
    """Return the names; of more than half of the nodes, or of many, only how many there are."""
    if out_of and (len(nodes) > _MAX_NODES_SHOWN or len(nodes) * 2 > out_of):
        return count_text(len(nodes), "node")
    return join_some(nodes, _MAX_NODES_SHOWN)
