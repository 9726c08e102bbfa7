"""Answers of many nodes merged, with the nodes that differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from pointsman.conditions import Blocks
from pointsman.explain.service_port import Explanation, Identity, ServicePortReport
from pointsman.model.addresses import Family
from pointsman.model.decision import WORST_FIRST, State
from pointsman.model.history import HistoryEvent
from pointsman.report.history import HistoryReport, format_time
from pointsman.report.service_list import ServiceList
from pointsman.report.service_table import COLUMNS
from pointsman.report.status import ProxyState, StatusReport, count_unserved
from pointsman.screen import PLAIN, Screen, Table, lay_out
from pointsman.text import format_count, join_some

_COLUMNS = tuple(column for column in COLUMNS if column.heading != "POLICY")
_MAX_NODES_SHOWN = 8
_MAX_NODES_OF_EVENT = 3
_MAX_DISAGREEMENTS_SHOWN = 50
_SAME_EVENT_SECONDS = 5.0


class NodeGroup(msgspec.Struct, frozen=True):
    """Nodes about which the same is true."""

    text: str
    """What is true."""
    nodes: tuple[str, ...]


class Disagreement(msgspec.Struct, frozen=True):
    """A subject about which nodes differ; the largest group comes first."""

    about: str
    groups: tuple[NodeGroup, ...]


class NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of one node in a line."""

    node: str
    version: str
    mode: str
    health: ProxyState
    service_ports: int
    """In all IP families."""
    service_states: dict[str, int]
    """Number of service ports by state."""
    pending: int

    HEADINGS: ClassVar = ("NODE", "VERSION", "MODE", "HEALTH", "SERVICE PORTS", "DOWN", "PARTIAL", "PENDING")

    @property
    def cells(self) -> tuple[str, ...]:
        states = (str(self.service_states.get(state.value, 0)) for state in (State.DOWN, State.PARTIAL))
        ports, pending = str(self.service_ports), str(self.pending)
        return (self.node, self.version, self.mode, self.health.value, ports, *states, pending)


class FleetPort(msgspec.Struct, frozen=True, rename="camel"):
    """One service port, and its state by node."""

    port: ServicePortReport
    """As the first node has it."""
    states: tuple[NodeGroup, ...]
    totals: tuple[int, ...]
    """Numbers of endpoints that nodes know."""
    nodes: int
    """Asked."""

    HEADINGS: ClassVar = tuple(column.heading for column in _COLUMNS)

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(column.render(self.port) or "-" for column in _COLUMNS[:-2]) + (
            "..".join(map(str, self.totals)),
            self._describe_states(),
        )

    def _describe_states(self) -> str:
        if len(self.states) == 1:
            return self.states[0].text
        return ", ".join(f"{one.text} on {_name_nodes(one.nodes, self.nodes)}" for one in self.states)


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of one node about one Service."""

    node: str
    mode: str
    families: dict[str, State]
    """The worst state of the selected service ports, by IP family."""
    used: int
    """Endpoints that this node uses, of `known`."""
    known: int

    HEADINGS: ClassVar = ("NODE", "MODE", "IPv4", "IPv6", "USED ENDPOINTS")

    @property
    def cells(self) -> tuple[str, ...]:
        states = (self.families.get(family.value, "-") for family in Family)
        return (self.node, self.mode, *states, f"{self.used}/{self.known}")


class FleetEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One event, and the nodes on which it happened at about the same time."""

    event: HistoryEvent
    nodes: tuple[str, ...]

    HEADINGS: ClassVar = ("TIME", "NODES", "SERVICE", "FAMILY", "EVENT", "MESSAGE")

    @property
    def cells(self) -> tuple[str, ...]:
        event = self.event
        what = (event.service or "-", event.family or "-", event.kind.value, event.message)
        return (format_time(event.at), join_some(self.nodes, _MAX_NODES_OF_EVENT), *what)


class FleetReport(msgspec.Struct, frozen=True, rename="camel"):
    """What a command found out about all nodes."""

    heading: str
    rows: Sequence[NodeStatus] | Sequence[FleetPort] | Sequence[NodeExplanation] | Sequence[FleetEvent]
    bad: tuple[NodeGroup, ...]
    """What is wrong, and where."""
    disagreements: tuple[Disagreement, ...]
    unanswered: dict[str, str]
    """Nodes that could not be asked, and why."""
    warnings: tuple[NodeGroup, ...] = ()
    """What is not as it should be and does not change the exit status."""

    @property
    def exit_status(self) -> int:
        """2: some node could not be asked; 1: something is wrong or nodes differ; 0: healthy."""
        if self.unanswered:
            return 2
        return 1 if self.bad or self.disagreements else 0


def group_nodes(statements: Iterable[tuple[str, str]]) -> tuple[NodeGroup, ...]:
    """Group pairs of node and text by text; the largest group first, then by name."""
    groups: dict[str, list[str]] = {}
    for node, text in sorted(statements):
        groups.setdefault(text, []).append(node)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
    return tuple(NodeGroup(text, tuple(nodes)) for text, nodes in ordered)


def find_disagreements(statements: Iterable[tuple[str, Mapping[str, str]]]) -> tuple[Disagreement, ...]:
    """Return the subjects whose texts, by node, are not all equal."""
    found = ((about, group_nodes(of_nodes.items())) for about, of_nodes in statements)
    return tuple(Disagreement(about, groups) for about, groups in found if len(groups) > 1)


def merge_status(answers: Mapping[str, StatusReport], unanswered: Mapping[str, str]) -> FleetReport:
    """Return a line for every node, all failing conditions, and how many service ports are not healthy."""
    rows = tuple(
        NodeStatus(
            node,
            status.version,
            status.mode,
            status.health,
            sum(family.service_ports for family in status.families),
            status.service_states,
            sum(family.pending for family in status.families),
        )
        for node, status in sorted(answers.items())
    )
    failing = (
        (node, f"{condition.type}: {condition.text}")
        for node, status in answers.items()
        for condition in status.conditions
        if condition.is_failing and condition.does_block(Blocks.SERVICES)
    )
    unserved = (
        (node, text)
        for node, status in answers.items()
        for text in count_unserved(status.service_states, "kubectl pointsman")
    )
    counts = {
        row.node: ", ".join(f"{one.service_ports} {one.family}" for one in answers[row.node].families)
        for row in rows
        if not row.pending
    }
    return FleetReport(
        f"{format_count(len(answers), 'node')} answered",
        rows,
        group_nodes(failing),
        find_disagreements(
            (
                ("the version", {row.node: row.version for row in rows}),
                ("the mode", {row.node: row.mode for row in rows}),
                ("the number of service ports", counts),
            )
        ),
        dict(unanswered),
        group_nodes(unserved),
    )


def merge_lists(answers: Mapping[str, ServiceList], unanswered: Mapping[str, str]) -> FleetReport:
    """Return every service port once, and its state by node, which policy Local may make different."""
    by_port: dict[Identity, dict[str, ServicePortReport]] = {}
    for node, answer in answers.items():
        for port in answer.ports:
            by_port.setdefault(port.identity, {})[node] = port
    rows = tuple(
        FleetPort(
            next(iter(ports.values())),
            group_nodes((node, port.state) for node, port in ports.items()),
            tuple(sorted({port.total for port in ports.values()})),
            len(answers),
        )
        for _, ports in sorted(by_port.items())
    )
    found = find_disagreements(
        (
            _format_port_name(row.port),
            {node: _describe(by_port[row.port.identity].get(node)) for node in answers},
        )
        for row in rows
    )
    heading = f"{format_count(len(rows), 'service port')} on {format_count(len(answers), 'node')}"
    return FleetReport(heading, rows, (), found, dict(unanswered))


def _describe(port: ServicePortReport | None) -> str:
    """Return what must be the same on every node, wherever it is in the cluster."""
    if port is None:
        return "unknown"
    addresses = ", ".join(sorted(frontend.address for frontend in port.frontends))
    return f"{port.total} endpoints, at {addresses}"


def merge_explanations(answers: Mapping[str, Explanation], unanswered: Mapping[str, str]) -> FleetReport:
    """Return where it is healthy in each IP family, where not and why, and which nodes know of other endpoints."""
    question = next((answer.question for answer in answers.values()), "")
    rows: list[NodeExplanation] = []
    for node, answer in sorted(answers.items()):
        families: dict[str, State] = {}
        for port in answer.ports:
            states = (port.state, families.get(port.family, port.state))
            families[port.family] = min(states, key=WORST_FIRST.index)
        used = sum(any(use.used for use in e.uses) for port in answer.ports for e in port.endpoints)
        known = sum(len(port.endpoints) for port in answer.ports)
        rows.append(NodeExplanation(node, answer.mode, families, used, known))
    reasons = {node: _find_reasons(answer) for node, answer in answers.items() if not answer.is_healthy}
    names = sorted({_format_port_name(port) for answer in answers.values() for port in answer.ports})
    statements = [
        (
            f"the endpoints of {name}",
            {node: _list_endpoints(answer, name) for node, answer in answers.items()},
        )
        for name in names
    ] or [("what it is", {node: "; ".join(found) for node, found in reasons.items()})]
    verdicts = [_judge_family(family.value, rows, answers) for family in Family]
    return FleetReport(
        f"{question}: {', '.join(filter(None, verdicts)) or 'no Service answers'}",
        tuple(rows),
        group_nodes((node, reason) for node, found in reasons.items() for reason in found),
        find_disagreements(statements),
        dict(unanswered),
    )


def _judge_family(family: str, rows: Sequence[NodeExplanation], answers: Mapping[str, Explanation]) -> str:
    """Return on how many nodes one IP family is served; nothing when the Service has no address of it."""
    states = [row.families[family] for row in rows if family in row.families]
    if not states:
        return ""
    if not any(port.total for answer in answers.values() for port in answer.ports if port.family == family):
        return f"{family} has no endpoints"
    return f"{family} healthy on {states.count(State.HEALTHY)} of {format_count(len(rows), 'node')}"


def merge_history(answers: Mapping[str, HistoryReport], unanswered: Mapping[str, str]) -> FleetReport:
    """Return the events of all nodes in order; one that several nodes have at about the same time is one."""
    every = [(event, node) for node, answer in answers.items() for event in answer.events]
    rows: dict[tuple[str, str, str, str], list[FleetEvent]] = {}
    for event, node in sorted(every, key=lambda one: (one[0].at, one[1])):
        same = rows.setdefault((event.service, event.family, event.kind.value, event.message), [])
        if same and node not in same[-1].nodes and event.at - same[-1].event.at < _SAME_EVENT_SECONDS:
            same[-1] = msgspec.structs.replace(same[-1], nodes=(*same[-1].nodes, node))
        else:
            same.append(FleetEvent(event, (node,)))
    merged = sorted((one for same in rows.values() for one in same), key=lambda one: one.event.at)
    heading = f"{format_count(len(merged), 'event')} of {format_count(len(answers), 'node')}"
    return FleetReport(heading, tuple(merged), (), (), dict(unanswered))


def _find_reasons(answer: Explanation) -> list[str]:
    findings = [*answer.findings, *(finding for port in answer.ports for finding in port.findings)]
    errors = [f"{finding.code}: {finding.message}" for finding in findings if finding.is_error]
    return errors or [
        f"{_format_port_name(port)} is {port.state}" for port in answer.ports if not port.is_healthy
    ]


def _format_port_name(port: ServicePortReport) -> str:
    return f"{port.name} {port.protocol} ({port.family})"


def _list_endpoints(answer: Explanation, name: str) -> str:
    for port in answer.ports:
        if _format_port_name(port) == name:
            return ", ".join(sorted(endpoint.address for endpoint in port.endpoints)) or "none"
    return "unknown"


def render_fleet(report: FleetReport, screen: Screen = PLAIN, *, headings: bool = True) -> str:
    """Return the table, what is wrong and where, and what nodes disagree about; without headings only the rows."""
    if not headings:
        return lay_out([Table([row.cells for row in report.rows], heading=False)], screen)
    content: list[str | Table] = [report.heading, ""]
    if report.rows:
        content += [Table([report.rows[0].HEADINGS, *(row.cells for row in report.rows)]), ""]
    content += [f"✗ {_name_nodes(each.nodes)}: {each.text}" for each in report.bad]
    content += [f"! {_name_nodes(each.nodes)}: {each.text}" for each in report.warnings]
    for each in report.disagreements[:_MAX_DISAGREEMENTS_SHOWN]:
        content.append(f"! nodes disagree about {each.about}")
        content += [f"    {_name_nodes(group.nodes)}: {group.text}" for group in each.groups]
    if len(report.disagreements) > _MAX_DISAGREEMENTS_SHOWN:
        content.append(
            f"! and {len(report.disagreements) - _MAX_DISAGREEMENTS_SHOWN} more; -o json lists all"
        )
    content += [f"✗ {node} could not be asked: {why}" for node, why in sorted(report.unanswered.items())]
    if not report.exit_status and not isinstance(next(iter(report.rows), None), FleetEvent):
        content.append("✓ all nodes agree" + (", some Services are not healthy" if report.warnings else ""))
    return lay_out(content, screen)


def _name_nodes(nodes: Sequence[str], out_of: int = 0) -> str:
    """Return the names; of more than half of the nodes, or of many, only how many there are."""
    if out_of and (len(nodes) > _MAX_NODES_SHOWN or len(nodes) * 2 > out_of):
        return format_count(len(nodes), "node")
    return join_some(nodes, _MAX_NODES_SHOWN)
