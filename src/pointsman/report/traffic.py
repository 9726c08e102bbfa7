"""Connections by service port and endpoint, from two readings of the kernel: the figures of `pointsman top` and their text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from pointsman.backends.contract import Count, Mode
from pointsman.explain.service_port import EndpointReport, Identity, ServicePortReport
from pointsman.kernel.tracked_flows import Flow
from pointsman.model.addresses import address_from_text, host_port_text
from pointsman.model.service import Protocol
from pointsman.screen import PLAIN, Screen, Table, bar, laid_out

Place = tuple[str, int, bytes, int]
"""IP family, protocol number, address and port of a frontend; the address of a node port is empty."""

_BAR_WIDTH = 10
_FlowKey = tuple[int, bytes, int, bytes, int, bytes]


class Reading(msgspec.Struct, frozen=True):
    """The kernel at one moment."""

    at: float
    counts: Mapping[str, Sequence[Count] | None]
    """By IP family; None where nothing is counted."""
    flows: Mapping[str, Sequence[Flow]]
    partial: bool = False
    """There were more flows than could be read in time."""


class EndpointTraffic(msgspec.Struct, frozen=True, rename="camel"):
    """One endpoint of a service port."""

    address: str
    node: str
    used: bool
    connections_per_second: float | None
    """None where they are not counted."""
    active: int
    share: float
    """Of the new connections where they are counted, else of the active flows."""


class ServiceTraffic(msgspec.Struct, frozen=True, rename="camel"):
    """One service port in one IP family."""

    service: str
    port: str
    protocol: str
    family: str
    state: str
    connections_per_second: float
    counted: bool
    """By the kernel; otherwise short connections are missed."""
    active: int
    endpoints: tuple[EndpointTraffic, ...]


class TrafficReport(msgspec.Struct, frozen=True, rename="camel"):
    """What happened between two readings, the busiest first."""

    node: str
    mode: str
    seconds: float
    rows: tuple[ServiceTraffic, ...]
    notes: tuple[str, ...] = ()
    """What the figures do not hold."""


class Directory:
    """Which service port a packet is for, by where it goes."""

    def __init__(self, rows: Iterable[ServicePortReport]) -> None:
        self.rows = tuple(rows)
        self._places: dict[Place, ServicePortReport] = {}
        self._endpoints: dict[Identity, frozenset[str]] = {}
        for row in self.rows:
            self._endpoints[row.identity] = frozenset(endpoint.address for endpoint in row.endpoints)
            for frontend in row.frontends:
                address = address_from_text(frontend.ip) if frontend.ip else b""
                if address is not None:
                    self._places[row.family, Protocol[row.protocol].value, address, frontend.port] = row

    def places(self, family: str) -> list[Place]:
        return [place for place in self._places if place[0] == family]

    def at(self, family: str, protocol: int, address: bytes, port: int) -> ServicePortReport | None:
        """Whose frontend this is."""
        return self._places.get((family, protocol, address, port))

    def hears(self, family: str) -> Callable[[bytes, int, bytes, int], bool]:
        """Whether a flow to this address and port may be one of ours."""
        places = {(address, port) for _, _, address, port in self.places(family)}
        return lambda address, port, _answering, _from: (address, port) in places or (b"", port) in places

    def of_flow(self, family: str, flow: Flow) -> tuple[ServicePortReport, str] | None:
        """The service port and the endpoint of a flow; at a node port only if one of its endpoints answers."""
        endpoint = host_port_text(flow.reply_source, flow.reply_source_port)
        row = self.at(family, flow.protocol, flow.destination, flow.destination_port)
        if row is None:
            row = self.at(family, flow.protocol, b"", flow.destination_port)
            if row is None or endpoint not in self._endpoints[row.identity]:
                return None
        return row, endpoint


def traffic_report(
    directory: Directory, before: Reading, now: Reading, *, node: str, mode: Mode
) -> TrafficReport:
    """The figures between two readings."""
    seconds = max(now.at - before.at, 0.001)
    tally = _Tally(directory, before, now)
    rows = [_row(row, tally, seconds) for row in directory.rows]
    rows.sort(key=lambda row: (-row.connections_per_second, -row.active, row.service, row.port, row.family))
    counted = all(tally.counted.values())
    notes = [note for note in (mode.counting.limits if counted else mode.counting.missing,) if note]
    if before.partial or now.partial:
        notes.append(
            "there are more tracked flows than can be read in the time allowed: figures are of a part of them"
        )
    notes.append("flows that bypass connection tracking, or are tracked in another zone, are not seen")
    return TrafficReport(node, mode.name, seconds, tuple(rows), tuple(notes))


class _Tally:
    """Everything counted, by service port and endpoint."""

    def __init__(self, directory: Directory, before: Reading, now: Reading) -> None:
        self.counted: dict[str, bool] = {}
        self.active: Counter[tuple[Identity, str]] = Counter()
        self.new: Counter[tuple[Identity, str]] = Counter()
        """By endpoint; the empty one stands for the service port as a whole."""
        self.seen: dict[Identity, set[str]] = {}
        """The endpoints with any figure, by service port."""
        for family, flows in now.flows.items():
            self._flows(directory, family, flows)
            counts, earlier = now.counts.get(family), before.counts.get(family)
            self.counted[family] = counts is not None and earlier is not None
            if counts is not None and earlier is not None:
                self._counts(directory, family, counts, earlier)
            else:
                known = {_flow_key(flow) for flow in before.flows.get(family, ())}
                self._new_flows(directory, family, (flow for flow in flows if _flow_key(flow) not in known))
        for of, endpoint in self.active.keys() | self.new.keys():
            if endpoint:
                self.seen.setdefault(of, set()).add(endpoint)

    def _flows(self, directory: Directory, family: str, flows: Iterable[Flow]) -> None:
        for flow in flows:
            found = directory.of_flow(family, flow)
            if found is not None:
                self.active[found[0].identity, found[1]] += 1

    def _new_flows(self, directory: Directory, family: str, flows: Iterable[Flow]) -> None:
        for flow in flows:
            found = directory.of_flow(family, flow)
            if found is not None:
                self.new[found[0].identity, found[1]] += 1
                self.new[found[0].identity, ""] += 1

    def _counts(
        self, directory: Directory, family: str, counts: Sequence[Count], earlier: Sequence[Count]
    ) -> None:
        """A counter that went backwards has started again; some modes count node ports at each address of the node."""
        before, after = _summed(earlier), _summed(counts)
        for (protocol, address, port, endpoint), connections in after.items():
            row = directory.at(family, protocol, address, port) or directory.at(family, protocol, b"", port)
            if row is not None:
                past = before.get((protocol, address, port, endpoint), 0)
                grown = connections - past if connections >= past else connections
                self.new[row.identity, endpoint] += grown


def _summed(counts: Iterable[Count]) -> Counter[tuple[int, bytes, int, str]]:
    summed: Counter[tuple[int, bytes, int, str]] = Counter()
    for count in counts:
        summed[count.protocol, count.address, count.port, count.endpoint] += count.connections
    return summed


def _flow_key(flow: Flow) -> _FlowKey:
    return (flow.protocol, flow.source, flow.source_port, flow.destination, flow.destination_port, flow.id)


def _row(row: ServicePortReport, tally: _Tally, seconds: float) -> ServiceTraffic:
    key = row.identity
    known = {endpoint.address for endpoint in row.endpoints}
    gone = [
        EndpointReport(address, "", False, False) for address in sorted(tally.seen.get(key, set()) - known)
    ]
    endpoints = (*row.endpoints, *gone)
    new = {endpoint.address: tally.new.get((key, endpoint.address), 0) for endpoint in endpoints}
    active = {endpoint.address: tally.active.get((key, endpoint.address), 0) for endpoint in endpoints}
    by_count = any(new.values())
    shared = new if by_count else active
    total = sum(shared.values())
    per_endpoint = by_count or not tally.counted.get(row.family, False)
    return ServiceTraffic(
        service=row.service,
        port=row.port or str(row.number),
        protocol=row.protocol,
        family=row.family,
        state=row.state,
        connections_per_second=tally.new.get((key, ""), 0) / seconds,
        counted=tally.counted.get(row.family, False),
        active=sum(active.values()),
        endpoints=tuple(
            EndpointTraffic(
                address=endpoint.address,
                node=endpoint.node,
                used=endpoint.used,
                connections_per_second=new[endpoint.address] / seconds if per_endpoint else None,
                active=active[endpoint.address],
                share=shared[endpoint.address] / total if total else 0.0,
            )
            for endpoint in endpoints
        ),
    )


def traffic_text(report: TrafficReport, screen: Screen = PLAIN, *, lines: int = 0) -> str:
    """A table, the busiest first; at most so many of its lines, where a screen has no more."""
    rows = list(_table_rows(report, screen))
    hidden = max(0, len(rows) - lines) if lines else 0
    content: list[str | Table] = [
        f"{report.node}, {report.mode} mode, over {report.seconds:.1f} s",
        "",
        Table(
            [["SERVICE, ENDPOINT", "PORT", "CONN/S", "ACTIVE", "SHARE"], *rows[: len(rows) - hidden]],
            numbers=frozenset((2, 3)),
        ),
    ]
    if hidden:
        content.append(f"and {hidden} more lines; name Services, or use --once, to see them")
    content += ["", *(f"! {note}" for note in report.notes)]
    return laid_out(content, screen)


def _table_rows(report: TrafficReport, screen: Screen) -> Iterator[list[str]]:
    for row in report.rows:
        rate = f"{row.connections_per_second:.1f}"
        name = row.service if row.family == "IPv4" else f"{row.service} ({row.family})"
        yield [name, f"{row.port}/{row.protocol}", rate if row.counted else f">={rate}", str(row.active), ""]
        for endpoint in row.endpoints:
            if not endpoint.used and not endpoint.active:
                continue
            drawn = bar(endpoint.share, screen, _BAR_WIDTH).rstrip()
            rate = (
                "-" if endpoint.connections_per_second is None else f"{endpoint.connections_per_second:.1f}"
            )
            yield [f"  {endpoint.address}", "", rate, str(endpoint.active), f"{endpoint.share:4.0%} {drawn}"]
