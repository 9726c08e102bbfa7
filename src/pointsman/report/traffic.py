"""Connections by service port and endpoint, from two readings of the kernel: the figures of `pointsman top` and their text. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import msgspec

from pointsman.backends.contract import Count, Counting, Mode
from pointsman.explain.service_port import EndpointReport, Identity, ServicePortReport, Traffic
from pointsman.kernel.flow_count import FlowCount, FrontendKey
from pointsman.model.addresses import Family, address_from_text, host_port_text
from pointsman.model.decision import WORST_FIRST
from pointsman.model.endpoint import Identity as EndpointIdentity
from pointsman.model.service import Protocol as TransportProtocol
from pointsman.screen import PLAIN, Screen, draw_bar, fit_rows, lay_out
from pointsman.text import format_count

Owners = Mapping[FrontendKey, Identity]
"""Whose frontend it is, in one IP family."""
TallyKey = tuple[Identity, str]
"""A service port, and `ip:port` of an endpoint; empty for the service port as a whole."""

_COLUMNS = ["SERVICE, ENDPOINT", "CONN/S", "OPEN", "SHARE", "", "STATE", "POD", "NODE"]
_NUMBERS = frozenset((1, 2, 3))
_OPTIONAL = (7, 4, 6, 5)
"""Node, bar, pod, state: left out in this order on a narrow screen."""
_BAR_WIDTH = 10
READ_SECONDS = 5.0
"""For the flows of one IP family; what cannot be read in that time is left out."""


class Places(Protocol):
    """Whose frontends and endpoints are where."""

    @property
    def owners(self) -> Mapping[str, Owners]:
        """By IP family."""

    def has_endpoint(self, owner: Identity, endpoint: EndpointIdentity, /) -> bool: ...


class Reading(msgspec.Struct, frozen=True):
    """The kernel at one moment."""

    at: float
    counts: Mapping[str, Sequence[Count] | None]
    """By IP family; None where nothing is counted."""
    flows: Mapping[str, FlowCount[Identity]]


class TrafficReport(msgspec.Struct, frozen=True, rename="camel"):
    """What happened between two readings, the busiest first."""

    node: str
    mode: str
    seconds: float
    ports: tuple[ServicePortReport, ...]
    """With their `traffic`."""
    notes: tuple[str, ...] = ()
    """What the figures do not hold."""


SORTS: Mapping[str, Callable[[ServicePortReport], tuple[Any, ...]]] = {
    "rate": lambda port: (-(port.measured.connections_per_second or 0), -port.measured.open),
    "open": lambda port: (-port.measured.open, -(port.measured.connections_per_second or 0)),
    "name": lambda _port: (),
    "state": lambda port: (WORST_FIRST.index(port.state),),
}
"""Sort keys: the busiest or worst first, equal ones by name."""


def sort_ports(ports: Iterable[ServicePortReport], sort: str) -> tuple[ServicePortReport, ...]:
    """Return the ports in the order of one of `SORTS`."""
    key = SORTS[sort]
    return tuple(sorted(ports, key=lambda port: (*key(port), *port.identity)))


class Directory:
    """Which service port a packet is for, by where it goes."""

    def __init__(self, rows: Iterable[ServicePortReport]) -> None:
        self.rows = tuple(rows)
        self.owners: dict[str, dict[FrontendKey, Identity]] = {}
        """By IP family."""
        self._endpoints: dict[Identity, frozenset[str]] = {}
        for row in self.rows:
            self._endpoints[row.identity] = frozenset(endpoint.address for endpoint in row.endpoints)
            owners = self.owners.setdefault(row.family, {})
            for frontend in row.frontends:
                address = address_from_text(frontend.ip) if frontend.ip else b""
                if address is not None:
                    owners[TransportProtocol[row.protocol].value, address, frontend.port] = row.identity

    def has_endpoint(self, owner: Identity, endpoint: EndpointIdentity) -> bool:
        return host_port_text(*endpoint) in self._endpoints[owner]


def read_kernel(places: Places, counting: Counting, max_flows: int) -> Reading:
    """Read counters and flows of every IP family that has Services, in the calling thread; raises KernelError.

    At most `max_flows` are remembered one by one, which is needed where the kernel does not count connections.
    """
    counts, flows = {}, {}
    for name, owners in places.owners.items():
        family = Family(name)
        counts[name] = counting.read(family)
        remembered = max_flows if counts[name] is None else 0
        flows[name] = FlowCount(owners, places.has_endpoint, max_flows=remembered)
        flows[name].read(family, READ_SECONDS)
    return Reading(time.monotonic(), counts, flows)


def build_traffic_report(
    directory: Directory, before: Reading, now: Reading, *, node: str, mode: Mode
) -> TrafficReport:
    """Return the figures between two readings."""
    tally = Tally(directory.owners, before, now)
    seen = tally.list_endpoints()
    ports = sort_ports(
        (_measure_port(row, tally, seen.get(row.identity, set())) for row in directory.rows), "rate"
    )
    return TrafficReport(node, mode.name, tally.seconds, ports, tuple(tally.list_notes(mode.counting)))


class Tally:
    """Open and new connections between two readings, by service port and endpoint."""

    def __init__(self, owners: Mapping[str, Owners], before: Reading, now: Reading) -> None:
        self.counted: dict[str, bool] = {}
        """By IP family: whether the kernel counted new connections."""
        self.seconds = max(now.at - before.at, 0.001)
        self.open: Counter[TallyKey] = Counter()
        self.new: Counter[TallyKey] = Counter()
        self.bytes: Counter[Identity] = Counter()
        """Of both directions, where they are counted."""
        self.is_partial = any(count.is_partial for count in (*before.flows.values(), *now.flows.values()))
        for family, flows in now.flows.items():
            for (owner, endpoint), number in flows.open.items():
                self.open[owner, host_port_text(*endpoint)] = number
                self.open[owner, ""] += number
            counts, earlier = now.counts.get(family), before.counts.get(family)
            self.counted[family] = counts is not None and earlier is not None
            if counts is not None and earlier is not None:
                self._add_counts(owners.get(family, {}), counts, earlier)
            elif family in before.flows:
                self._add_new(flows, before.flows[family])
        self.has_bytes = any(self.bytes.values())

    def list_endpoints(self) -> dict[Identity, set[str]]:
        """Return the endpoints with any figure, by service port."""
        seen: dict[Identity, set[str]] = {}
        for owner, endpoint in self.open.keys() | self.new.keys():
            if endpoint:
                seen.setdefault(owner, set()).add(endpoint)
        return seen

    def list_notes(self, counting: Counting) -> Iterator[str]:
        """Yield what the figures do not hold."""
        if not all(self.counted.values()):
            yield counting.missing
        elif {owner for owner, place in +self.new if not place} - {
            owner for owner, place in self.new if place
        }:
            yield counting.limits
        if self.is_partial:
            yield "there are more tracked flows than can be read in the time allowed: figures are of a part of them"

    def _add_new(self, flows: FlowCount[Identity], before: FlowCount[Identity]) -> None:
        for key, (owner, endpoint) in flows.flows.items():
            if key not in before.flows:
                self.new[owner, host_port_text(*endpoint)] += 1
                self.new[owner, ""] += 1

    def _add_counts(self, owners: Owners, counts: Sequence[Count], earlier: Sequence[Count]) -> None:
        """A counter that went backwards has started again; some modes count node ports at each address of the node."""
        before, after = _sum_counts(earlier), _sum_counts(counts)
        for key, (connections, size) in after.items():
            protocol, address, port, endpoint = key
            owner = owners.get((protocol, address, port)) or owners.get((protocol, b"", port))
            if owner is not None:
                past, past_size = before.get(key, (0, 0))
                self.new[owner, endpoint] += connections - past if connections >= past else connections
                self.bytes[owner] += size - past_size if size >= past_size else size


def _sum_counts(counts: Iterable[Count]) -> dict[tuple[int, bytes, int, str], tuple[int, int]]:
    """Return connections and bytes."""
    summed: dict[tuple[int, bytes, int, str], tuple[int, int]] = {}
    for count in counts:
        key = (count.protocol, count.address, count.port, count.endpoint)
        connections, size = summed.get(key, (0, 0))
        summed[key] = (connections + count.connections, size + count.bytes)
    return summed


def _measure_port(port: ServicePortReport, tally: Tally, seen: AbstractSet[str]) -> ServicePortReport:
    """Add the figures; endpoints that are gone and still have connections are listed as well."""
    key = port.identity
    known = {endpoint.address for endpoint in port.endpoints}
    gone = [EndpointReport(address, "", False, False) for address in sorted(seen - known)]
    endpoints = (*port.endpoints, *gone)
    new = {endpoint.address: tally.new[key, endpoint.address] for endpoint in endpoints}
    opened = {endpoint.address: tally.open[key, endpoint.address] for endpoint in endpoints}
    counted = tally.counted.get(port.family, False)
    per_endpoint = any(new.values()) or not counted
    shares = add_shares(
        {
            address: Traffic(opened[address], new[address] / tally.seconds if per_endpoint else None, counted)
            for address in opened
        }
    )
    return msgspec.structs.replace(
        port,
        traffic=Traffic(
            tally.open[key, ""],
            tally.new[key, ""] / tally.seconds,
            counted,
            bytes_per_second=tally.bytes[key] / tally.seconds if tally.has_bytes else None,
        ),
        endpoints=tuple(msgspec.structs.replace(one, traffic=shares[one.address]) for one in endpoints),
    )


def add_shares(measured: Mapping[str, Traffic]) -> dict[str, Traffic]:
    """Return the traffic of the endpoints of a service port, by address, with the share of each."""
    weights = {address: one.connections_per_second or 0.0 for address, one in measured.items()}
    if not any(weights.values()):
        weights = {address: float(one.open) for address, one in measured.items()}
    total = sum(weights.values()) or 1.0
    return {
        address: msgspec.structs.replace(one, share=weights[address] / total)
        for address, one in measured.items()
    }


def merge_traffic(reports: Mapping[str, TrafficReport]) -> TrafficReport:
    """Return the figures of several nodes as one: a connection is tracked with its Service on one of them only."""
    by_port: dict[Identity, list[ServicePortReport]] = {}
    for _, report in sorted(reports.items()):
        for port in report.ports:
            by_port.setdefault(port.identity, []).append(port)
    modes = dict.fromkeys(report.mode for report in reports.values())
    notes = dict.fromkeys(note for report in reports.values() for note in report.notes)
    return TrafficReport(
        node=format_count(len(reports), "node"),
        mode="/".join(modes),
        seconds=max((report.seconds for report in reports.values()), default=0.0),
        ports=sort_ports(map(_merge_ports, by_port.values()), "rate"),
        notes=tuple(notes),
    )


def _merge_ports(ports: Sequence[ServicePortReport]) -> ServicePortReport:
    """One service port as several nodes see it; its state is the worst."""
    by_address: dict[str, list[EndpointReport]] = {}
    for port in ports:
        for endpoint in port.endpoints:
            by_address.setdefault(endpoint.address, []).append(endpoint)
    sums = add_shares(
        {address: _sum_traffic([one.traffic for one in same]) for address, same in by_address.items()}
    )
    endpoints = tuple(
        msgspec.structs.replace(
            same[0], used=any(one.used for one in same), local=False, traffic=sums[address]
        )
        for address, same in by_address.items()
    )
    return msgspec.structs.replace(
        ports[0],
        state=min((port.state for port in ports), key=WORST_FIRST.index),
        traffic=_sum_traffic([port.traffic for port in ports]),
        endpoints=endpoints,
    )


def _sum_traffic(measured: Iterable[Traffic | None]) -> Traffic:
    known = [one for one in measured if one is not None]
    rates = [one.connections_per_second for one in known if one.connections_per_second is not None]
    sizes = [one.bytes_per_second for one in known if one.bytes_per_second is not None]
    return Traffic(
        open=sum(one.open for one in known),
        connections_per_second=sum(rates) if rates else None,
        counted=all(one.counted for one in known),
        bytes_per_second=sum(sizes) if sizes else None,
    )


def is_idle(measured: Traffic | None) -> bool:
    """Whether there is no open and no new connection."""
    return measured is None or not (measured.open or measured.connections_per_second)


def fit_traffic_rows(rows: Iterable[Sequence[str]], screen: Screen) -> list[str]:
    """Return the heading and these rows as one line each."""
    return fit_rows([_COLUMNS, *rows], screen, numbers=_NUMBERS, optional=_OPTIONAL)


def build_traffic_rows(port: ServicePortReport, screen: Screen) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of one service port, each with the address of its endpoint; that of the port itself is empty."""
    name = port.name if port.family == Family.IPV4.value else f"{port.name} ({port.family})"
    yield "", [name, *_build_figures(port.measured), "", "", port.state, "", ""]
    for endpoint in port.endpoints:
        measured = endpoint.traffic or Traffic(0, None)
        if endpoint.used or measured.open:
            bar = draw_bar(measured.share, screen, _BAR_WIDTH).rstrip()
            state = "" if endpoint.used else "unused"
            figures = (*_build_figures(measured), f"{measured.share:.0%}", bar)
            yield endpoint.address, [f"  {endpoint.address}", *figures, state, endpoint.pod, endpoint.node]


def _build_figures(measured: Traffic) -> tuple[str, str]:
    rate = measured.connections_per_second
    text = "-" if rate is None else f"{rate:.1f}" if measured.counted else f">={rate:.1f}"
    return text, str(measured.open)


def render_traffic(report: TrafficReport, screen: Screen = PLAIN, *, headings: bool = True) -> str:
    """Return the table in the order of the report, and what its figures do not hold; without headings only its rows."""
    heading, *rows = fit_traffic_rows(
        (row for port in report.ports for _, row in build_traffic_rows(port, screen)), screen
    )
    if not headings:
        return lay_out(rows, screen)
    title = f"{report.node}, {report.mode} mode, over {report.seconds:.1f} s"
    return lay_out([title, "", heading, *rows, "", *(f"! {note}" for note in report.notes)], screen)
