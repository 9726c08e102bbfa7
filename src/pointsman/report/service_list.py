"""Lists of service ports: selected, sorted, paged, as data and as text; behind `pointsman list` and the status page."""

from __future__ import annotations

import heapq
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from pointsman.backends.contract import Mode
from pointsman.explain.build import format_frontend, summarize_plan, summarize_unplanned
from pointsman.explain.packets import compute_state
from pointsman.explain.service_port import ServicePortReport
from pointsman.explain.view import FamilyView, View
from pointsman.model.decision import WORST_FIRST, State
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.report.labels import Selector, ServiceLabels, selected
from pointsman.screen import PLAIN, Screen, Table, Tone, laid_out
from pointsman.text import join_some

MAX_ROWS = 200
"""Of one page."""
_MAX_ADDRESSES_SHOWN = 10
_BEYOND_HEXADECIMAL = frozenset(string.ascii_lowercase) - frozenset("abcdef")
_TONES = {State.HEALTHY.value: Tone.GOOD, State.PARTIAL.value: Tone.WARNING, State.DOWN.value: Tone.BAD}


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


def _sort_key(sort: str) -> Callable[[Entry], tuple[Any, ...]]:
    chosen = SORTS.get(sort, SORTS["name"])
    return lambda entry: (*chosen(entry), *entry.identity)


def _entries(view: View) -> Iterator[Entry]:
    for family in view.families:
        for name in family.states:
            yield Entry(name, family, family.plans.get(name), view.mode)


class ListQuery(msgspec.Struct, frozen=True):
    """Which service ports to list, and how much about each."""

    namespace: str = ""
    selector: Selector = ()
    names: tuple[str, ...] = ()
    """Globs, each for a name or for NAMESPACE/NAME; none: all."""
    states: tuple[State, ...] = ()
    """None: all."""
    detailed: bool = False
    sort: str = "name"
    """One of `SORTS`."""
    since: str = ""
    """The version of an earlier answer."""

    def matches(self, name: ServicePortName, labels: ServiceLabels) -> bool:
        if self.namespace not in ("", name.namespace):
            return False
        if self.names and not any(
            fnmatchcase(name.key if "/" in glob else name.service, glob) for glob in self.names
        ):
            return False
        return not self.selector or selected(labels.of(name.key), self.selector)


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


def build_list(view: View, labels: ServiceLabels, query: ListQuery, version: str = "") -> ServiceList:
    """Return all service ports that match; one that is not served at all is down."""
    found = [entry for entry in _entries(view) if query.matches(entry.name, labels)]
    if query.states:
        found = [entry for entry in found if entry.state in query.states]
    found.sort(key=_sort_key(query.sort))
    ports = tuple(entry.build_report(detailed=query.detailed) for entry in found)
    return ServiceList(view.node, view.mode.name, version, ports=ports)


def build_page(
    view: View,
    search: str = "",
    offset: int = 0,
    limit: int = MAX_ROWS,
    sort: str = "",
    *,
    reverse: bool = False,
) -> ServicePage:
    """Return the service ports whose name, address, port or state contains every word of `search`, sorted."""
    terms = search.casefold().split()
    limit, offset = max(1, min(limit, MAX_ROWS)), max(0, offset)
    found = [entry for entry in _entries(view) if all(_contains(entry, word) for word in terms)]
    first = heapq.nlargest if reverse else heapq.nsmallest
    shown = first(offset + limit, found, key=_sort_key(sort))[offset:]
    total = sum(len(family.states) for family in view.families)
    return ServicePage(tuple(entry.build_report() for entry in shown), len(found), total, offset)


def count_states(view: View) -> dict[str, int]:
    """Return how many service ports are in each state."""
    counts = {state.value: 0 for state in State}
    for entry in _entries(view):
        counts[entry.state] += 1
    return counts


def _contains(entry: Entry, word: str) -> bool:
    """Whether a row shows the word; what cannot contain it is not rendered."""
    name = entry.name
    if word in name.service or word in name.namespace or word in name.port or word in str(name).casefold():
        return True
    frontends = entry.plan.frontends if entry.plan is not None else ()
    if not _BEYOND_HEXADECIMAL.intersection(word):
        return any(word in format_frontend(frontend) for frontend in frontends)
    return any(word in text for text in _searchable(entry))


def _searchable(entry: Entry) -> Iterator[str]:
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


def list_text(
    ports: Sequence[ServicePortReport], *, wide: bool, screen: Screen = PLAIN, heading: bool = True
) -> str:
    """Return a table with one line per service port."""
    head = ["SERVICE", "PORT", "ADDRESS", "ENDPOINTS", "POLICY", "STATE"]
    if wide:
        head += ["FAMILY", "LOCAL", "ALSO AT", "AFFINITY", "TOPOLOGY", "SCHEDULER", "GONE", "USED", "UNUSED"]
    cells = [[*_cells(port), *(_wide_cells(port) if wide else ())] for port in ports]
    return laid_out([Table([head, *cells] if heading else cells, _TONES, heading=heading)], screen)


def _cells(port: ServicePortReport) -> Iterator[str]:
    yield port.service
    yield port.port_text
    yield port.frontends[0].address
    yield f"{port.usable}/{port.total}"
    yield "/".join(dict.fromkeys(frontend.policy for frontend in port.frontends if frontend.policy)) or "-"
    yield "deleted" if port.deleted else port.state


def _wide_cells(port: ServicePortReport) -> Iterator[str]:
    yield port.family
    yield str(port.local)
    yield _join([f"{frontend.kind} {frontend.address}" for frontend in port.frontends[1:]])
    yield f"{port.affinity_seconds} s" if port.affinity_seconds else "-"
    yield port.topology or "-"
    yield port.scheduler or "-"
    yield "reset" if port.resets_gone else "-"
    yield _join([endpoint.address for endpoint in port.endpoints if endpoint.used])
    yield _join([endpoint.address for endpoint in port.endpoints if not endpoint.used])


def _join(items: Sequence[str]) -> str:
    return join_some(items, _MAX_ADDRESSES_SHOWN) or "-"
