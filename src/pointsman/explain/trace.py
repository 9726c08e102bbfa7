"""The events of a traced packet as a report: hook by hook, rule by rule, with the service port each belongs to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pointsman.explain.service_port import Explanation
from pointsman.machine.packet_filter import Action, FilterChain, FilterRule
from pointsman.machine.trace import Header, TraceEvent
from pointsman.screen import PLAIN, Screen, lay_out
from pointsman.wording.outcomes import describe_endpoint

_HOOKS = {
    "prerouting": "arrives",
    "input": "is for this node",
    "forward": "is forwarded",
    "output": "is sent by this node",
    "postrouting": "leaves",
}
_TRANSLATIONS = frozenset((Action.DESTINATION_NAT, Action.SOURCE_NAT))
_ENDS = frozenset((Action.DROP, Action.REJECT))
_VERDICTS = {
    Action.ACCEPT: "accepted by this chain",
    Action.DROP: "dropped",
    Action.REJECT: "rejected",
    Action.RETURN: "back",
    Action.DESTINATION_NAT: "destination translated",
    Action.SOURCE_NAT: "source translated",
    Action.PASS: "continues",
}


class _Act(msgspec.Struct, frozen=True):
    """An event with its rule, and the action that the rule makes of it."""

    event: TraceEvent
    chain: FilterChain | None
    rule: str
    action: Action

    @property
    def verdict(self) -> str:
        if self.event.by_policy:
            return "dropped by the policy"
        if self.action in (Action.JUMP, Action.GOTO):
            return f"to chain {self.event.target}"
        return _VERDICTS.get(self.action, "something unknown")


class TraceStep(msgspec.Struct, frozen=True, rename="camel"):
    """What one rule did."""

    table: str
    chain: str
    rule: str
    """Its conditions; empty when it has none, or is the policy."""
    verdict: str


class TraceStage(msgspec.Struct, frozen=True, rename="camel"):
    """The packet at one hook."""

    hook: str
    source: str
    destination: str
    in_interface: str
    out_interface: str
    belongs_to: str
    """The service port whose frontend or endpoint the destination is; empty when it is neither."""
    steps: tuple[TraceStep, ...]


class TraceReport(msgspec.Struct, frozen=True, rename="camel"):
    """The way of one packet."""

    question: str
    stages: tuple[TraceStage, ...]
    passed: bool
    """No rule dropped it."""
    result: str
    connection: str = ""
    """The result of the connection, where it was made here."""
    notes: tuple[str, ...] = ()
    """What cannot be followed."""


def build_trace_report(
    question: str,
    events: Sequence[TraceEvent],
    chains: Mapping[tuple[str, str], FilterChain],
    interfaces: Mapping[int, str],
    explanation: Explanation,
    notes: tuple[str, ...] = (),
) -> TraceReport:
    """Return the way of the first packet among the events; `chains` has every chain they name, with its rules."""
    foreign = [event for event in events if not event.is_own]
    first = [event for event in foreign if event.packet == foreign[0].packet]
    acts = [_find_act(event, chains.get((event.table, event.chain))) for event in first]
    stages = tuple(_build_stages(acts, interfaces, explanation))
    passed = not any(act.action in _ENDS for act in acts)
    return TraceReport(question, stages, passed, _render_result(stages, acts), notes=notes)


def _build_stages(
    acts: Iterable[_Act], interfaces: Mapping[int, str], explanation: Explanation
) -> Iterator[TraceStage]:
    current: TraceStage | None = None
    header = Header("", "")
    hook = ""
    for act in acts:
        event, chain = act.event, act.chain
        hook = chain.hook if chain is not None and chain.hook else hook
        header = event.header or header
        if current is None or (hook, header.source, header.destination) != _find_place(current):
            if current is not None:
                yield current
            current = TraceStage(
                hook,
                header.source,
                header.destination,
                interfaces.get(event.in_interface, ""),
                interfaces.get(event.out_interface, ""),
                _find_owner(header.destination, explanation),
                (),
            )
        if _is_effective(event):
            step = TraceStep(event.table, event.chain, act.rule, act.verdict)
            current = msgspec.structs.replace(current, steps=(*current.steps, step))
    if current is not None:
        yield current


def _find_place(stage: TraceStage) -> tuple[str, str, str]:
    return stage.hook, stage.source, stage.destination


def _is_effective(event: TraceEvent) -> bool:
    """Return whether an event decides something; the end of a chain and a policy that accepts do not."""
    if event.by_policy:
        return event.action is not Action.ACCEPT
    return bool(event.handle) or event.action not in (Action.RETURN, Action.PASS)


def _find_act(event: TraceEvent, chain: FilterChain | None) -> _Act:
    if event.by_policy:
        return _Act(event, chain, "", event.action)
    rules = [rule for rule in (chain.rules if chain else ()) if rule.handle == event.handle]
    rule = rules[0] if rules else FilterRule((), Action.UNKNOWN)
    text = rule.conditions if len(rules) == 1 else " or ".join(each.conditions for each in rules)
    comment = f" /* {rule.comment} */" if rule.comment else ""
    return _Act(event, chain, f"{text}{comment}".strip(), _find_action(event, rule))


def _find_action(event: TraceEvent, rule: FilterRule) -> Action:
    """Return the action: the kernel reports an answer or a translation as drop or accept, so the rule decides."""
    if event.action is Action.DROP and rule.action is Action.REJECT:
        return Action.REJECT
    if event.action is Action.ACCEPT and rule.action in _TRANSLATIONS:
        return rule.action
    return event.action


def _find_owner(destination: str, explanation: Explanation) -> str:
    for port in explanation.ports:
        for frontend in port.frontends:
            if destination in frontend.places:
                return f"{frontend.kind} of {port.name}"
    for port in explanation.ports:
        for endpoint in port.endpoints:
            if endpoint.address == destination:
                text = describe_endpoint(endpoint.pod, endpoint.node)
                return f"endpoint of {port.name}, {text}" if text else f"endpoint of {port.name}"
    return ""


def _render_result(stages: Sequence[TraceStage], acts: Sequence[_Act]) -> str:
    end = next((act for act in acts if act.action in _ENDS), None)
    if end is not None:
        rule = f", by its rule `{end.rule}`" if end.rule else ""
        where = "of" if end.event.by_policy else "in"
        return f"{end.verdict} {where} chain {end.event.chain} of table {end.event.table}{rule}"
    if not stages:
        return "no rule saw it"
    first, last = stages[0], stages[-1]
    belongs = f", {last.belongs_to}" if last.belongs_to else ""
    became = f"its destination became {last.destination}{belongs}"
    if last.destination == first.destination:
        became = f"its destination stayed {last.destination}{belongs}: no rule translated it"
    masker = next((act.event.chain for act in acts if act.action is Action.SOURCE_NAT), "")
    masked = f"; its source became the node's when it left (chain {masker})" if masker else ""
    way = f"; it left by {last.out_interface}" if last.out_interface else "; it stayed on this node"
    return f"{became}{masked}{way}"


def render_trace(report: TraceReport, screen: Screen = PLAIN) -> str:
    """Return the report for a terminal, ending with a newline."""
    lines = [report.question]
    for stage in report.stages:
        lines += ["", *_render_stage(stage)]
    lines += ["", f"{'✓' if report.passed else '✗'} Result: {report.result}"]
    if report.connection:
        lines.append(f"Connection: {report.connection}")
    lines += [f"! {note}" for note in report.notes]
    return lay_out(lines, screen)


def _render_stage(stage: TraceStage) -> Iterator[str]:
    ways = [("in by", stage.in_interface), ("out by", stage.out_interface)]
    interfaces = "".join(f", {word} {name}" for word, name in ways if name)
    belongs = f" ({stage.belongs_to})" if stage.belongs_to else ""
    text = _HOOKS.get(stage.hook, "passes")
    yield f"{stage.hook}: it {text}: {stage.source} -> {stage.destination}{belongs}{interfaces}"
    if not stage.steps:
        yield "  no rule concerned it"
    width = max((len(f"{step.table} {step.chain}") for step in stage.steps), default=0)
    for step in stage.steps:
        rule = f"{step.rule}: " if step.rule else ""
        yield f"  {step.table + ' ' + step.chain:{width}}  {rule}{step.verdict}"
