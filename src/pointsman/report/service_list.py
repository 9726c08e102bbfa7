"""Lists of service ports: selected, sorted, paged, as data and as text; behind `pointsman list` and the status page."""

from __future__ import annotations

import heapq
import string
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pointsman.backends.contract import Mode
from pointsman.explain.build import format_frontend, summarize_plan, summarize_unplanned
from pointsman.explain.packets import compute_state
from pointsman.explain.service_port import ServicePortReport, Traffic
from pointsman.explain.view import FamilyView, View
from pointsman.model.decision import WORST_FIRST, State
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.report.labels import ServiceLabels, ServiceSelection

if TYPE_CHECKING:
    from pointsman.report.samples import TrafficSamples

TRAFFIC = "traffic"
"""A sort key of pages: the busiest first."""
MAX_ROWS = 200
"""Of one page."""
_FASTEST, _GZIP = 1, 16 + zlib.MAX_WBITS
_BEYOND_HEXADECIMAL = frozenset(string.ascii_lowercase) - frozenset("abcdef")


class Entry(NamedTuple):
    """A service port before its report is built."""

    name: ServicePortName
    family: FamilyView
    plan: ServicePlan | None
    mode: Mode

    @property
    def state(self) -> State:
        return State.DOWN if self.plan is None else compute_state(self.plan, self.family, self.mode)

    @property
    def identity(self) -> tuple[ServicePortName, str]:
        return self.name, self.family.family.value

    @property
    def usable(self) -> int:
        return 0 if self.plan is None else len(self.plan.endpoints.reachable)

    @property
    def total(self) -> int:
        return len(self.family.states[self.name].endpoints)

    @property
    def address(self) -> tuple[int, bytes]:
        address = self.family.states[self.name].port.cluster_ip
        return len(address), address

    def build_report(self, *, detailed: bool = False) -> ServicePortReport:
        if self.plan is None:
            return summarize_unplanned(self.name, self.family, detailed=detailed)
        return summarize_plan(self.plan, self.family, self.mode, detailed=detailed)


SORTS: Mapping[str, Callable[[Entry], tuple[Any, ...]]] = {
    "name": lambda _entry: (),
    "state": lambda entry: (WORST_FIRST.index(entry.state),),
    "endpoints": lambda entry: (-entry.usable, -entry.total),
    "unused": lambda entry: (entry.usable - entry.total,),
    "port": lambda entry: (entry.family.states[entry.name].port.port,),
    "address": lambda entry: entry.address,
    "policy": lambda entry: (
        entry.family.states[entry.name].port.service.internal_local,
        entry.family.states[entry.name].port.service.external_local,
    ),
}
"""Sort keys: the worst or most comes first, equal ones are sorted by name."""


def _build_sort_key(sort: str) -> Callable[[Entry], tuple[Any, ...]]:
    chosen = SORTS.get(sort, SORTS["name"])
    return lambda entry: (*chosen(entry), *entry.identity)


def _list_entries(view: View) -> Iterator[Entry]:
    for family in view.families:
        for name in family.states:
            yield Entry(name, family, family.plans.get(name), view.mode)


class ListQuery(ServiceSelection, frozen=True):
    """Which service ports to list, and how much about each."""

    states: tuple[State, ...] = ()
    """None: all."""
    detailed: bool = False
    sort: str = "name"
    """One of `SORTS`."""
    since: str = ""
    """The version of an earlier answer."""


class ServiceList(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of `list`."""

    node: str
    mode: str = ""
    version: str = ""
    """Changes with every sync of the running proxy, and with labels."""
    unchanged: bool = False
    """Nothing changed since the version in the query; there are no ports then."""
    ports: tuple[ServicePortReport, ...] = ()


class ServicePage(msgspec.Struct, frozen=True, rename="camel"):
    """Some service ports out of many."""

    ports: tuple[ServicePortReport, ...]
    found: int
    """How many match the search."""
    total: int
    offset: int
    totals: Mapping[str, Traffic] = {}
    """Of all service ports, by IP family."""
    notes: tuple[str, ...] = ()
    """What the figures do not hold."""


def build_list(view: View, labels: ServiceLabels, query: ListQuery) -> ServiceList:
    """Return all service ports that match; one that is not served at all is down."""
    return ServiceList(view.node, view.mode.name, ports=tuple(_build_reports(view, labels, query)))


def compress_list(view: View, labels: ServiceLabels, query: ListQuery, version: str) -> bytes:
    """Return the same as gzip of JSON, made row by row: all rows of a large cluster take as much memory as the proxy itself."""
    compressor = zlib.compressobj(_FASTEST, wbits=_GZIP)
    end = b"]}"
    head = msgspec.json.encode(ServiceList(view.node, view.mode.name, version)).removesuffix(end)
    pieces = [compressor.compress(head)]
    separator = b""
    for report in _build_reports(view, labels, query):
        pieces.append(compressor.compress(separator + msgspec.json.encode(report)))
        separator = b","
    return b"".join((*pieces, compressor.compress(end), compressor.flush()))


def _build_reports(view: View, labels: ServiceLabels, query: ListQuery) -> Iterator[ServicePortReport]:
    found = [entry for entry in _list_entries(view) if query.matches(entry.name.key, labels)]
    if query.states:
        found = [entry for entry in found if entry.state in query.states]
    found.sort(key=_build_sort_key(query.sort))
    return (entry.build_report(detailed=query.detailed) for entry in found)


def build_page(
    view: View,
    search: str = "",
    offset: int = 0,
    limit: int = MAX_ROWS,
    sort: str = "",
    *,
    reverse: bool = False,
    samples: TrafficSamples | None = None,
) -> ServicePage:
    """Return the service ports whose name, address, port, state, endpoint or pod contains every word of `search`, sorted.

    With samples, they have figures, and `traffic` sorts the busiest first.
    """
    from pointsman.report.samples import TrafficSamples  # `list` starts without it

    samples = samples or TrafficSamples()
    terms = search.casefold().split()
    limit, offset = max(1, min(limit, MAX_ROWS)), max(0, offset)
    found = [entry for entry in _list_entries(view) if all(_contains(entry, word) for word in terms)]
    first = heapq.nlargest if reverse else heapq.nsmallest
    key = _build_sort_key(sort) if sort != TRAFFIC else partial(_build_traffic_key, samples)
    ports = tuple(entry.build_report() for entry in first(offset + limit, found, key=key)[offset:])
    total = sum(len(family.states) for family in view.families)
    if samples.is_empty:
        return ServicePage(ports, len(found), total, offset, notes=samples.notes)
    ports = tuple(msgspec.structs.replace(port, traffic=samples.find(port.identity)) for port in ports)
    totals = {family.family.value: samples.find_total(family.family) for family in view.families}
    return ServicePage(ports, len(found), total, offset, totals, samples.notes)


def count_states(view: View) -> dict[str, int]:
    """Return how many service ports are in each state."""
    counts = {state.value: 0 for state in State}
    for entry in _list_entries(view):
        counts[entry.state] += 1
    return counts


def _build_traffic_key(samples: TrafficSamples, entry: Entry) -> tuple[Any, ...]:
    name = entry.name
    new, opened = samples.find_activity((name.key, name.port, name.protocol.name, entry.family.family.value))
    return (-new, -opened, *entry.identity)


def _contains(entry: Entry, word: str) -> bool:
    """Whether a row shows the word; what cannot contain it is not rendered."""
    name = entry.name
    if word in name.service or word in name.namespace or word in name.port or word in str(name).casefold():
        return True
    endpoints = entry.family.states[name].endpoints
    if any(word in endpoint.pod for endpoint in endpoints):
        return True
    if _BEYOND_HEXADECIMAL.intersection(word):
        return any(word in text for text in _list_searchable(entry))
    frontends = entry.plan.frontends if entry.plan is not None else ()
    if any(word in format_frontend(frontend) for frontend in frontends):
        return True
    return ("." in word or ":" in word) and any(word in str(endpoint) for endpoint in endpoints)


def _list_searchable(entry: Entry) -> Iterator[str]:
    port, plan = entry.family.states[entry.name].port, entry.plan
    yield entry.name.protocol.lower
    yield port.family.value.casefold()
    yield entry.state
    if port.service.internal_local or port.service.external_local:
        yield "local"
    if plan is None:
        return
    if plan.balancing is not None:
        yield plan.scheduler
    if plan.resets_gone:
        yield "reset-gone"
    for frontend in plan.frontends:
        yield frontend.kind.value.casefold()
