"""Service ports as rows: what the status page searches and pages through, and `pointsman list` selects from."""

from __future__ import annotations

import heapq
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from pointsman.backends.contract import Mode
from pointsman.explain.verdict import WORST_FIRST, port_verdict
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import address_text, host_port_text
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import Frontend, ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.wording.findings import render_message

MAX_ROWS = 200
_FRONTENDS_SHOWN = 8
_BEYOND_HEXADECIMAL = frozenset(string.ascii_lowercase) - frozenset("abcdef")


class FrontendRow(msgspec.Struct, frozen=True, rename="camel"):
    """One address of a service port."""

    kind: str
    address: str
    policy: str
    outcome: str
    ip: str = ""
    """Empty for a node port."""
    port: int = 0


class EndpointRow(msgspec.Struct, frozen=True, rename="camel"):
    """One endpoint of a service port."""

    address: str
    node: str
    local: bool
    used: bool
    """Connections from this node may reach it."""


RowIdentity = tuple[str, str, str, str]
"""Service, port, protocol and IP family of a service port."""


class ServiceRow(msgspec.Struct, frozen=True, rename="camel"):
    """One service port of one IP family."""

    service: str
    port: str
    protocol: str
    family: str
    number: int
    frontends: tuple[FrontendRow, ...]
    usable: int
    """Endpoints that connections from this node may reach."""
    total: int
    local: int
    state: str
    """A `Verdict`: `answers`, `partly` (not every client, or not at every address) or `down`."""
    affinity_seconds: int = 0
    topology: str = ""
    scheduler: str = ""
    """How endpoints are chosen; empty for evenly at random."""
    resets_gone: bool = False
    """Connections to endpoints that have left are reset."""
    problems: tuple[str, ...] = ()
    endpoints: tuple[EndpointRow, ...] = ()
    """Only where they were asked for."""

    @property
    def identity(self) -> RowIdentity:
        return (self.service, self.port, self.protocol, self.family)

    @property
    def port_words(self) -> str:
        """The port as people know it, and its protocol."""
        return f"{self.port or self.number}/{self.protocol}"


class ServicePage(msgspec.Struct, frozen=True, rename="camel"):
    """Some rows out of many."""

    rows: tuple[ServiceRow, ...]
    found: int
    """How many match the search."""
    total: int
    offset: int


def service_page(
    view: View,
    search: str = "",
    offset: int = 0,
    limit: int = MAX_ROWS,
    sort: str = "",
    *,
    reverse: bool = False,
) -> ServicePage:
    """The rows whose name, address, port or state contains every word of `search`, sorted by name or one of `ORDERS`."""
    words = search.casefold().split()
    limit, offset = max(1, min(limit, MAX_ROWS)), max(0, offset)
    named = [
        (name, family.family.value, plan, family)
        for family in view.families
        for name, plan in family.plans.items()
        if all(_contains(plan, family, view.mode, word) for word in words)
    ]
    order = ORDERS.get(sort)
    first = heapq.nlargest if reverse else heapq.nsmallest
    key = _order if order is None else lambda entry: (order(entry[2], entry[3], view.mode), _order(entry))
    shown = first(offset + limit, named, key=key)[offset:]
    total = sum(len(family.plans) for family in view.families)
    rows = tuple(service_row(plan, family, view.mode) for _, _, plan, family in shown)
    return ServicePage(rows, len(named), total, offset)


_Entry = tuple[ServicePortName, str, ServicePlan, FamilyView]


def _order(entry: _Entry) -> tuple[ServicePortName, str]:
    return entry[:2]


ORDERS: Mapping[str, Callable[[ServicePlan, FamilyView, Mode], tuple[Any, ...]]] = {
    "address": lambda plan, _family, _mode: tuple(
        (len(frontend.address), frontend.address, frontend.port) for frontend in plan.frontends[:1]
    ),
    "policy": lambda plan, _family, _mode: (
        plan.port.service.internal_local,
        plan.port.service.external_local,
    ),
    "endpoints": lambda plan, _family, _mode: (len(plan.endpoints.reachable), len(plan.endpoints.all)),
    "state": lambda plan, family, mode: (WORST_FIRST.index(port_verdict(plan, family, mode)),),
}
"""How rows can be sorted other than by name; equal ones are by name."""


def _contains(plan: ServicePlan, family: FamilyView, mode: Mode, word: str) -> bool:
    """Whether a row shows the word; what cannot hold it is not even put into text."""
    name = plan.name
    if word in name.service or word in name.namespace or word in name.port or word in str(name).casefold():
        return True
    if not _BEYOND_HEXADECIMAL.intersection(word):
        return any(word in _frontend_address(frontend) for frontend in plan.frontends)
    return any(word in text for text in _words(plan, family, mode))


def _words(plan: ServicePlan, family: FamilyView, mode: Mode) -> Iterator[str]:
    yield plan.name.protocol.lower
    yield plan.port.family.value.casefold()
    yield port_verdict(plan, family, mode).value
    if plan.balancing is not None:
        yield plan.scheduler
    if plan.resets_gone:
        yield "reset-gone"
    if plan.port.service.internal_local or plan.port.service.external_local:
        yield "local"
    for frontend in plan.frontends:
        yield frontend.kind.value.casefold()


def _frontend_address(frontend: Frontend) -> str:
    return host_port_text(frontend.address, frontend.port) if frontend.address else f"port {frontend.port}"


def service_row(plan: ServicePlan, family: FamilyView, mode: Mode, *, detailed: bool = False) -> ServiceRow:
    """The row; with details every address and endpoint is in it."""
    shown = plan.frontends if detailed else plan.frontends[:_FRONTENDS_SHOWN]
    frontends = tuple(
        FrontendRow(
            frontend.kind.value,
            _frontend_address(frontend),
            "Local" if frontend.local_policy else "Cluster",
            frontend.outcome.value,
            address_text(frontend.address) if frontend.address else "",
            frontend.port,
        )
        for frontend in shown
    )
    return ServiceRow(
        service=plan.name.key,
        port=plan.name.port,
        protocol=plan.name.protocol.name,
        family=plan.port.family.value,
        number=plan.port.port,
        frontends=frontends,
        usable=len(plan.endpoints.reachable),
        total=len(plan.endpoints.all),
        local=sum(endpoint.local for endpoint in plan.endpoints.all),
        state=port_verdict(plan, family, mode).value,
        affinity_seconds=plan.port.service.affinity_seconds,
        topology=plan.endpoints.topology.value,
        scheduler=plan.scheduler,
        resets_gone=plan.resets_gone,
        problems=tuple(map(render_message, plan.findings)),
        endpoints=endpoint_rows(plan.endpoints.all, plan.endpoints.reachable) if detailed else (),
    )


def endpoint_rows(endpoints: Iterable[Endpoint], used: Iterable[Endpoint]) -> tuple[EndpointRow, ...]:
    """All endpoints, each with whether it is among those used."""
    reached = frozenset(used)
    return tuple(
        EndpointRow(str(endpoint), endpoint.node, endpoint.local, endpoint in reached)
        for endpoint in endpoints
    )
