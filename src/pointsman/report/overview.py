"""The list of services as the status page and `/plans` show it: one short row per service port, searched and paged."""

from __future__ import annotations

import heapq
import string
from collections.abc import Iterator, Mapping

import msgspec

from pointsman.model.addresses import Family, host_port_text
from pointsman.model.plan import Frontend, Outcome, ServicePlan
from pointsman.model.service import ServicePortName

MAX_ROWS = 200
_FRONTENDS_SHOWN = 8
_BEYOND_HEXADECIMAL = frozenset(string.ascii_lowercase) - frozenset("abcdef")

Plans = Mapping[Family, Mapping[ServicePortName, ServicePlan]]


class FrontendRow(msgspec.Struct, frozen=True, rename="camel"):
    """One address of a service port."""

    kind: str
    address: str
    policy: str
    outcome: str


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
    """`answers`, `partly` (some frontend does not) or `down`."""
    affinity_seconds: int = 0
    topology: str = ""
    scheduler: str = ""
    """How endpoints are chosen; empty for evenly at random."""
    problems: tuple[str, ...] = ()


class ServicePage(msgspec.Struct, frozen=True, rename="camel"):
    """Some rows out of many."""

    rows: tuple[ServiceRow, ...]
    found: int
    """How many match the search."""
    total: int
    offset: int


def service_page(plans: Plans, search: str = "", offset: int = 0, limit: int = MAX_ROWS) -> ServicePage:
    """The rows whose name, address, port or state contains every word of `search`, sorted by name."""
    words = search.casefold().split()
    limit, offset = max(1, min(limit, MAX_ROWS)), max(0, offset)
    named = [
        (name, family.value, plan)
        for family, of_family in plans.items()
        for name, plan in of_family.items()
        if all(_contains(plan, word) for word in words)
    ]
    shown = heapq.nsmallest(offset + limit, named, key=_order)[offset:]
    total = sum(len(of_family) for of_family in plans.values())
    return ServicePage(tuple(service_row(plan) for _, _, plan in shown), len(named), total, offset)


def _order(entry: tuple[ServicePortName, str, ServicePlan]) -> tuple[ServicePortName, str]:
    return entry[:2]


def _contains(plan: ServicePlan, word: str) -> bool:
    """Whether a row shows the word; what cannot hold it is not even put into text."""
    name = plan.name
    if word in name.service or word in name.namespace or word in name.port or word in str(name).casefold():
        return True
    if not _BEYOND_HEXADECIMAL.intersection(word):
        return any(word in _frontend_address(frontend) for frontend in plan.frontends)
    return any(word in text for text in _words(plan))


def _words(plan: ServicePlan) -> Iterator[str]:
    yield plan.name.protocol.lower
    yield plan.port.family.value.casefold()
    yield state_of(plan)
    if plan.balance is not None:
        yield plan.scheduler
    if plan.port.internal_local or plan.port.external_local:
        yield "local"
    for frontend in plan.frontends:
        yield frontend.kind.value.casefold()


def _frontend_address(frontend: Frontend) -> str:
    return host_port_text(frontend.address, frontend.port) if frontend.address else f"port {frontend.port}"


def state_of(plan: ServicePlan) -> str:
    """Whether all, some or none of the frontends lead to endpoints."""
    balanced = sum(frontend.outcome is Outcome.BALANCE for frontend in plan.frontends)
    if balanced == len(plan.frontends):
        return "answers"
    return "partly" if balanced else "down"


def service_row(plan: ServicePlan) -> ServiceRow:
    frontends = tuple(
        FrontendRow(
            frontend.kind.value,
            _frontend_address(frontend),
            "Local" if frontend.local_policy else "Cluster",
            frontend.outcome.value,
        )
        for frontend in plan.frontends[:_FRONTENDS_SHOWN]
    )
    return ServiceRow(
        service=plan.name.key,
        port=plan.name.port,
        protocol=plan.name.protocol.name,
        family=plan.port.family.value,
        number=plan.port.port,
        frontends=frontends,
        usable=len(plan.reachable_endpoints),
        total=len(plan.all_endpoints),
        local=sum(endpoint.local for endpoint in plan.all_endpoints),
        state=state_of(plan),
        affinity_seconds=plan.port.affinity_seconds,
        topology=plan.topology.value,
        scheduler=plan.scheduler,
        problems=tuple(problem.message for problem in plan.problems),
    )
