"""From a service port and its endpoints to its plan. Pure: the same inputs always give the same plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from pointsman.model.addresses import Cidr, address_text, host_port_text
from pointsman.model.balancing import (
    NO_REQUEST,
    BalancingDefaults,
    BalancingPlan,
    Scheduler,
    build_balancing_plan,
    choose_fallback_scheduler,
    choose_scheduler,
    remove_drained_endpoints,
)
from pointsman.model.claims import Claim, Winner
from pointsman.model.endpoint import FULL_SHARE, NO_WEIGHT, Endpoint
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import Frontend, FrontendKind, Outcome, ServicePlan, decide_outcome
from pointsman.model.problem import Problem
from pointsman.model.service import SOURCE_RANGES_ANNOTATION, Protocol, ServicePort
from pointsman.model.slots import compute_max_hash_slots, compute_max_hashed_endpoints
from pointsman.model.topology import Selection, select_endpoints

_NOTHING_LOST: Mapping[Claim, Winner] = {}


def plan_service_port(
    port: ServicePort,
    endpoints: tuple[Endpoint, ...],
    context: NodeContext,
    lost: Mapping[Claim, Winner] = _NOTHING_LOST,
) -> ServicePlan | Problem:
    """The plan, or why there is none: another service port has its cluster IP. `lost` are claims others have won."""
    problems: list[Problem] = []
    if lost or port.external_ips or port.load_balancer_ips:
        winner = lost.get((port.cluster_ip, port.protocol, port.port))
        if winner is not None:
            return _contested("ContestedClusterIP", port.cluster_ip, port, winner)
        port = _granted_port(port, context, lost, problems)
    ranges = _ranges_elsewhere(port, context, problems)
    chosen = select_endpoints(port, endpoints, context.node_name, context.zone)
    chosen, balancing = _balanced(port, chosen, context.balancing, problems)
    internal = decide_outcome(chosen.has_any, chosen.local if port.internal_local else chosen.cluster)
    external = decide_outcome(chosen.has_any, chosen.local if port.external_local else chosen.cluster)
    return ServicePlan(
        port=port,
        frontends=tuple(_frontends(port, internal, external, ranges)),
        cluster_endpoints=chosen.cluster,
        local_endpoints=chosen.local,
        reachable_endpoints=chosen.reachable,
        has_any=chosen.has_any,
        all_endpoints=endpoints,
        topology=chosen.topology,
        topology_note=chosen.note,
        problems=tuple(problems),
        balancing=balancing,
        resets_gone=_resets_gone(port, context.balancing),
    )


def _resets_gone(port: ServicePort, defaults: BalancingDefaults) -> bool:
    asked = port.balancing.reset_gone
    return port.protocol is Protocol.TCP and (defaults.reset_gone if asked is None else asked)


def _balanced(
    port: ServicePort, chosen: Selection, defaults: BalancingDefaults, problems: list[Problem]
) -> tuple[Selection, BalancingPlan | None]:
    """How connections are spread, and over which of the chosen endpoints."""
    request = port.balancing
    if (
        request is NO_REQUEST
        and defaults.scheduler is Scheduler.RANDOM
        and not any(e.weight != NO_WEIGHT or e.share != FULL_SHARE for e in chosen.reachable)
    ):
        return chosen, None
    scheduler = choose_scheduler(request, chosen.reachable, defaults, problems)
    if scheduler.hashes and defaults.capabilities.fills_hash_tables:
        scheduler = _affordable(scheduler, port, chosen.reachable, problems)
    if scheduler is Scheduler.SOURCE_PORT_HASH and port.affinity_seconds:
        message = "sessionAffinity ClientIP: the client's port is left out of the hash, or it would not stay"
        problems.append(Problem("PortNotHashed", message))
        scheduler = Scheduler.SOURCE_HASH
    if scheduler is not Scheduler.RANDOM:
        cluster = remove_drained_endpoints(chosen.cluster, request)
        local = remove_drained_endpoints(chosen.local, request)
        if (cluster, local) != (chosen.cluster, chosen.local):
            kept = {*cluster, *local}
            reachable = tuple(endpoint for endpoint in chosen.reachable if endpoint in kept)
            chosen = msgspec.structs.replace(chosen, cluster=cluster, local=local, reachable=reachable)
    max_slots = compute_max_hash_slots(len(chosen.reachable), port.of_ports, _frontend_count(port))
    return chosen, build_balancing_plan(scheduler, request, chosen.reachable, defaults, max_slots)


def _affordable(
    scheduler: Scheduler, port: ServicePort, endpoints: tuple[Endpoint, ...], problems: list[Problem]
) -> Scheduler:
    """The hash that is wanted, unless filling its tables would keep every node from its other Services for seconds."""
    most = compute_max_hashed_endpoints(port.of_ports, _frontend_count(port))
    if len(endpoints) <= most:
        return scheduler
    used = choose_fallback_scheduler(port.balancing, endpoints)
    message = (
        f"with this many ports and addresses a Service is hashed over at most {most} endpoints; {used.value} is used "
        f"instead of {scheduler.value}. Split it, or let sessionAffinity ClientIP keep clients at their endpoints"
    )
    problems.append(Problem("TooManyToHash", message, served=True))
    return used


def _frontend_count(port: ServicePort) -> int:
    return 1 + len(port.external_ips) + len(port.load_balancer_ips) + bool(port.node_port)


def _ranges_elsewhere(port: ServicePort, context: NodeContext, problems: list[Problem]) -> tuple[Cidr, ...]:
    """The source ranges that hold at external IPs and the node port."""
    if port.ranges_of_other_family and (
        port.load_balancer_ips or (port.ranges_everywhere and port.externally_accessible)
    ):
        message = f"loadBalancerSourceRanges hold no {port.family.value} range: all {port.family.value} clients are admitted"
        problems.append(Problem("SourceRangesOfOtherFamily", message, served=True))
    if not port.ranges_everywhere or not port.source_ranges:
        return ()
    if context.balancing.capabilities.limits_all_frontends:
        return port.source_ranges
    message = (
        f"annotation {SOURCE_RANGES_ANNOTATION}: not possible in this proxy mode; loadBalancerSourceRanges hold "
        "at load-balancer addresses only"
    )
    problems.append(Problem("SourceRangesNotPossible", message))
    return ()


def _frontends(
    port: ServicePort, internal: Outcome, external: Outcome, ranges: tuple[Cidr, ...]
) -> Iterator[Frontend]:
    yield Frontend(FrontendKind.CLUSTER_IP, port.cluster_ip, port.port, port.internal_local, internal)
    for address in port.external_ips:
        yield Frontend(FrontendKind.EXTERNAL_IP, address, port.port, port.external_local, external, ranges)
    for address in port.load_balancer_ips:
        yield Frontend(
            FrontendKind.LOAD_BALANCER_IP,
            address,
            port.port,
            port.external_local,
            external,
            port.source_ranges,
        )
    if port.node_port:
        yield Frontend(FrontendKind.NODE_PORT, b"", port.node_port, port.external_local, external, ranges)


def _granted_port(
    port: ServicePort, context: NodeContext, lost: Mapping[Claim, Winner], problems: list[Problem]
) -> ServicePort:
    """The service port without the addresses it may not have; adds to `problems` what its author should know."""
    node_port = port.node_port
    winner = lost.get((b"", port.protocol, node_port)) if node_port else None
    if winner is not None:
        message = f"node port {node_port} is served by {winner.name}"
        problems.append(Problem("ContestedNodePort", message, holder=winner.name))
        node_port = 0
    found = {
        address: problem
        for address in (*port.external_ips, *port.load_balancer_ips)
        if (problem := _address_problem(address, port, context, lost)) is not None
    }
    problems += found.values()
    refused = {address for address, problem in found.items() if not problem.served}
    if not refused and winner is None:
        return port
    return msgspec.structs.replace(
        port,
        node_port=node_port,
        external_ips=tuple(a for a in port.external_ips if a not in refused),
        load_balancer_ips=tuple(a for a in port.load_balancer_ips if a not in refused),
    )


def _address_problem(
    address: bytes, port: ServicePort, context: NodeContext, lost: Mapping[Claim, Winner]
) -> Problem | None:
    """Why the service port may not have an external address that it asks for, or why it should ask for another."""
    winner = lost.get((address, port.protocol, port.port))
    text = address_text(address)
    if winner is not None and winner.has_address:
        message = f"{text} is the cluster IP of {winner.name.key}"
        return Problem("AddressIsClusterIP", message, address, holder=winner.name)
    if winner is not None:
        return _contested("ContestedAddress", address, port, winner)
    allowed = context.external_allow
    if allowed and not any(cidr.contains(address) for cidr in allowed):
        return Problem("AddressNotAllowed", f"{text} is outside --external-ip-allow-cidrs", address)
    if address != port.cluster_ip and any(cidr.contains(address) for cidr in context.service_cidrs):
        message = (
            f"{text} lies in the service range: it is lost as soon as a Service gets it as its cluster IP"
        )
        return Problem("AddressInServiceRange", message, address, served=True)
    return None


def _contested(reason: str, address: bytes, port: ServicePort, winner: Winner) -> Problem:
    message = f"{host_port_text(address, port.port)} is served by {winner.name}"
    return Problem(reason, message, address, holder=winner.name)
