"""The events of a traced packet, put into words: hook by hook, rule by rule, with the service port each belongs to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pointsman.explain.endpoint_users import described
from pointsman.explain.report import Explanation, PortAnswer
from pointsman.kernel.nft_trace import TABLE, Header, TraceEvent
from pointsman.model.packet_filter import Deed, FilterChain, FilterRule
from pointsman.screen import PLAIN, Screen, laid_out

_HOOK_WORDS = {
    "prerouting": "arrives",
    "input": "is for this node",
    "forward": "is forwarded",
    "output": "is sent by this node",
    "postrouting": "leaves",
}
_TRANSLATED = {Deed.DESTINATION_NAT: "destination translated", Deed.SOURCE_NAT: "source translated"}


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
    """The service port whose frontend or endpoint the destination is, in words; empty when it is neither."""
    steps: tuple[TraceStep, ...]


class TraceReport(msgspec.Struct, frozen=True, rename="camel"):
    """The way of one packet."""

    question: str
    stages: tuple[TraceStage, ...]
    passed: bool
    """No rule dropped it."""
    result: str
    connection: str = ""
    """What came of the connection, where it was made here."""
    notes: tuple[str, ...] = ()
    """What cannot be followed."""


def report_of(
    question: str,
    events: Sequence[TraceEvent],
    chains: Mapping[tuple[str, str], FilterChain],
    interfaces: Mapping[int, str],
    explanation: Explanation,
    notes: tuple[str, ...] = (),
) -> TraceReport:
    """The way of the first packet among the events; `chains` has every chain they name, with its rules."""
    theirs = [event for event in events if not event.table.endswith(f" {TABLE}")]
    first = [event for event in theirs if event.packet == theirs[0].packet]
    stages = tuple(_stages(first, chains, interfaces, explanation))
    dropped = next((step for stage in stages for step in stage.steps if step.verdict in _ENDS), None)
    passed = dropped is None
    return TraceReport(question, stages, passed, _result(stages, dropped), notes=notes)


_BY_POLICY = "dropped by the policy"
_ENDS = frozenset(("dropped", "rejected", _BY_POLICY))


def _stages(
    events: Iterable[TraceEvent],
    chains: Mapping[tuple[str, str], FilterChain],
    interfaces: Mapping[int, str],
    explanation: Explanation,
) -> Iterator[TraceStage]:
    current: TraceStage | None = None
    header = Header("", "")
    hook = ""
    for event in events:
        chain = chains.get((event.table, event.chain))
        hook = chain.hook if chain is not None and chain.hook else hook
        header = event.header or header
        if current is None or (hook, header.source, header.destination) != _place(current):
            if current is not None:
                yield current
            current = TraceStage(
                hook,
                header.source,
                header.destination,
                interfaces.get(event.in_interface, ""),
                interfaces.get(event.out_interface, ""),
                _belongs(header.destination, explanation),
                (),
            )
        step = _step(event, chain)
        if step is not None:
            current = msgspec.structs.replace(current, steps=(*current.steps, step))
    if current is not None:
        yield current


def _place(stage: TraceStage) -> tuple[str, str, str]:
    return stage.hook, stage.source, stage.destination


def _step(event: TraceEvent, chain: FilterChain | None) -> TraceStep | None:
    """None for what changes nothing: the end of a chain, a policy that accepts."""
    if event.deed in (Deed.RETURN, Deed.PASS) and not event.handle:
        return None
    if event.by_policy:
        if event.deed is Deed.ACCEPT:
            return None
        return TraceStep(event.table, event.chain, "", _BY_POLICY)
    rules = [rule for rule in (chain.rules if chain else ()) if rule.handle == event.handle]
    rule = rules[0] if rules else FilterRule((), Deed.UNKNOWN)
    text = rule.conditions if len(rules) == 1 else " or ".join(each.conditions for each in rules)
    comment = f" /* {rule.comment} */" if rule.comment else ""
    return TraceStep(event.table, event.chain, f"{text}{comment}".strip(), _verdict(event, rule))


def _verdict(event: TraceEvent, rule: FilterRule) -> str:
    if rule.deed is Deed.REJECT and event.deed in (Deed.DROP, Deed.REJECT):
        return "rejected"
    if event.deed is Deed.DROP:
        return "dropped"
    if rule.deed in _TRANSLATED and event.deed is Deed.ACCEPT:
        return _TRANSLATED[rule.deed]
    if event.deed in (Deed.JUMP, Deed.GOTO):
        return f"to chain {event.target}"
    return {Deed.ACCEPT: "accepted by this chain", Deed.RETURN: "back", Deed.PASS: "goes on"}.get(
        event.deed, "something unknown"
    )


def _belongs(destination: str, explanation: Explanation) -> str:
    for port in explanation.ports:
        for frontend in port.frontends:
            if destination in frontend.places:
                return f"{frontend.kind} of {_name(port)}"
    for port in explanation.ports:
        for endpoint in port.endpoints:
            if endpoint.address == destination:
                words = described(endpoint.pod, endpoint.node)
                return f"endpoint of {_name(port)}, {words}" if words else f"endpoint of {_name(port)}"
    return ""


def _name(port: PortAnswer) -> str:
    return f"{port.service}:{port.port}" if port.port else port.service


def _result(stages: Sequence[TraceStage], dropped: TraceStep | None) -> str:
    if dropped is not None:
        rule = f", by its rule `{dropped.rule}`" if dropped.rule else ""
        where = "of" if dropped.verdict == _BY_POLICY else "in"
        return f"{dropped.verdict} {where} chain {dropped.chain} of table {dropped.table}{rule}"
    if not stages:
        return "no rule saw it"
    first, last = stages[0], stages[-1]
    belongs = f", {last.belongs_to}" if last.belongs_to else ""
    became = f"its destination became {last.destination}{belongs}"
    if last.destination == first.destination:
        became = f"its destination stayed {last.destination}{belongs}: no rule translated it"
    masked = f"; its source became the node's when it left ({_masker(stages)})" if _masker(stages) else ""
    way = f"; it left by {last.out_interface}" if last.out_interface else "; it stayed on this node"
    return f"{became}{masked}{way}"


def _masker(stages: Sequence[TraceStage]) -> str:
    found = (
        f"chain {step.chain}"
        for stage in stages
        for step in stage.steps
        if step.verdict == _TRANSLATED[Deed.SOURCE_NAT]
    )
    return next(found, "")


def trace_text(report: TraceReport, screen: Screen = PLAIN) -> str:
    """For a terminal, ending with a newline."""
    lines = [report.question]
    for stage in report.stages:
        lines += ["", *_stage_lines(stage)]
    lines += ["", f"{'✓' if report.passed else '✗'} Result: {report.result}"]
    if report.connection:
        lines.append(f"Connection: {report.connection}")
    lines += [f"! {note}" for note in report.notes]
    return laid_out(lines, screen)


def _stage_lines(stage: TraceStage) -> Iterator[str]:
    ways = [("in by", stage.in_interface), ("out by", stage.out_interface)]
    interfaces = "".join(f", {word} {name}" for word, name in ways if name)
    belongs = f" ({stage.belongs_to})" if stage.belongs_to else ""
    words = _HOOK_WORDS.get(stage.hook, "passes")
    yield f"{stage.hook}: it {words}: {stage.source} -> {stage.destination}{belongs}{interfaces}"
    if not stage.steps:
        yield "  no rule concerned it"
    width = max((len(f"{step.table} {step.chain}") for step in stage.steps), default=0)
    for step in stage.steps:
        rule = f"{step.rule}: " if step.rule else ""
        yield f"  {step.table + ' ' + step.chain:{width}}  {rule}{step.verdict}"
