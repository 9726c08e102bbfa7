"""The list of services as the status page and `/plans` show it: one short row per service port, searched and paged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from pointsman.model.addresses import Family, host_port_text
from pointsman.model.plan import FrontendKind, Outcome, ServicePlan
from pointsman.model.service import ServicePortName

MAX_ROWS = 200
_FRONTENDS_SHOWN = 8

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
    matching = _matching(plans, words)
    total = sum(len(of_family) for of_family in plans.values())
    rows = tuple(service_row(family, plan) for family, plan in islice(matching, offset, offset + limit))
    return ServicePage(rows, len(matching), total, offset)


def _matching(plans: Plans, words: Sequence[str]) -> list[tuple[Family, ServicePlan]]:
    named = [(name, family) for family, of_family in plans.items() for name in of_family]
    named.sort(key=lambda entry: (entry[0], entry[1].value))
    everything = ((family, plans[family][name]) for name, family in named)
    if not words:
        return list(everything)
    return [entry for entry in everything if _contains(entry[1], words)]


def _contains(plan: ServicePlan, words: Sequence[str]) -> bool:
    text = " ".join(_searched(plan)).casefold()
    return all(word in text for word in words)


def _searched(plan: ServicePlan) -> Iterator[str]:
    yield str(plan.name)
    yield plan.name.protocol.name
    yield plan.port.family.value
    yield state_of(plan)
    for frontend in plan.frontends:
        yield frontend.kind.value
        yield host_port_text(frontend.address, frontend.port) if frontend.address else f":{frontend.port}"
    if plan.port.internal_local or plan.port.external_local:
        yield "local"


def state_of(plan: ServicePlan) -> str:
    """Whether all, some or none of the frontends lead to endpoints."""
    balanced = sum(frontend.outcome is Outcome.BALANCE for frontend in plan.frontends)
    if balanced == len(plan.frontends):
        return "answers"
    return "partly" if balanced else "down"


def service_row(family: Family, plan: ServicePlan) -> ServiceRow:
    frontends = tuple(
        FrontendRow(
            frontend.kind.value,
            f"port {frontend.port}"
            if frontend.kind is FrontendKind.NODE_PORT
            else host_port_text(frontend.address, frontend.port),
            "Local" if frontend.local_policy else "Cluster",
            frontend.outcome.value,
        )
        for frontend in plan.frontends[:_FRONTENDS_SHOWN]
    )
    return ServiceRow(
        service=plan.name.key,
        port=plan.name.port,
        protocol=plan.name.protocol.name,
        family=family.value,
        number=plan.port.port,
        frontends=frontends,
        usable=len(plan.reachable_endpoints),
        total=len(plan.all_endpoints),
        local=sum(endpoint.local for endpoint in plan.all_endpoints),
        state=state_of(plan),
        affinity_seconds=plan.port.affinity_seconds,
        topology=plan.topology.value,
        problems=tuple(problem.message for problem in plan.refused),
    )
