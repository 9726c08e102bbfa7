"""EndpointSlices into endpoints per service port: decode once, merge cheaply.

A Service may have many slices, and the same address may stand in two of them with different conditions while a
controller moves it, or a pod network gives the address of a leaving pod to a new one. What stays wins over what
leaves, then the better state, so the result does not depend on the order of events.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from operator import itemgetter

from pointsman.model.addresses import (
    Family,
    address_and_text,
    find_unusable_reason,
)
from pointsman.model.balancing import Weights, find_weight, parse_weights
from pointsman.model.endpoint import NO_WEIGHT, Endpoint, Identity, shared_state
from pointsman.model.objects import EndpointSlice, Hint, SliceEndpoint, SlicePort
from pointsman.model.problem import Problem
from pointsman.model.service import Protocol

PortKey = tuple[str, Protocol]
"""Port name and protocol: what connects a slice's port with a Service's."""

SliceEndpoints = dict[PortKey, tuple[Endpoint, ...]]

MAX_ENDPOINT_PORTS = 100_000
"""Of one slice: endpoints times ports. The API allows 1,000 and 20,000, of which no node could hold a few."""


def parse_slice_endpoints(
    endpoint_slice: EndpointSlice, family: Family, node_name: str
) -> tuple[SliceEndpoints, list[Problem]]:
    """Sorted endpoints of this family by port, and what had to be left out. Never raises on bad content."""
    problems: list[Problem] = []
    if endpoint_slice.address_type != family.value:
        return {}, problems
    usable = sorted(_usable_endpoints(endpoint_slice, family, problems), key=_ORDER)
    unique = len({address for _, address, _ in usable}) == len(usable)
    weights = parse_weights(endpoint_slice.metadata, problems)
    found: SliceEndpoints = {}
    room = MAX_ENDPOINT_PORTS
    for port in endpoint_slice.ports or ():
        key = _port_key(port, problems)
        if key is None or port.port is None:
            continue
        room -= len(usable)
        if room < 0:
            message = f"port {port.name!r} and those after it are left out: {len(usable)} endpoints have more than {MAX_ENDPOINT_PORTS} ports in all"
            problems.append(Problem("TooManyEndpointPorts", message))
            break
        number = port.port
        entries = tuple([_endpoint(address, number, item, node_name, weights) for _, address, item in usable])
        if key in found:
            found[key] = merge_endpoints([found[key], entries])
        else:
            found[key] = entries if unique else merge_endpoints([entries])
    return found, problems


def merge_endpoints(lists: Iterable[tuple[Endpoint, ...]]) -> tuple[Endpoint, ...]:
    """One entry per address and port, the better state winning, ordered by the text `ip:port` as kube-proxy."""
    best: dict[Identity, Endpoint] = {}
    for endpoints in lists:
        for endpoint in endpoints:
            key = (endpoint.address, endpoint.port)  # its identity, without the price of a property
            known = best.get(key)
            if known is None or _rank(endpoint) > _rank(known):
                best[key] = endpoint
    return tuple(sorted(best.values(), key=str))


def _rank(
    endpoint: Endpoint,
) -> tuple[bool, bool, bool, bool, tuple[str, ...], tuple[str, ...], str, str, str, int]:
    return (
        not endpoint.terminating,
        endpoint.ready,
        endpoint.serving,
        endpoint.local,
        endpoint.zone_hints,
        endpoint.node_hints,
        endpoint.node,
        endpoint.zone,
        endpoint.pod,
        endpoint.weight,
    )


_Located = tuple[str, bytes, SliceEndpoint]
"""A usable endpoint: what it is ordered by, so that slices sort as `merge_endpoints` does, once for all their ports; its packed
address; itself."""
_ORDER = itemgetter(0)


def _usable_endpoints(
    endpoint_slice: EndpointSlice, family: Family, problems: list[Problem]
) -> list[_Located]:
    found: list[_Located] = []
    length = family.address_length
    for endpoint in endpoint_slice.endpoints or ():
        if not endpoint.addresses:
            problems.append(Problem("EndpointWithoutAddress", "an endpoint has no address"))
            continue
        text = endpoint.addresses[0]
        read = address_and_text(text)
        if read is None:
            problems.append(Problem("BadEndpointAddress", f"endpoint address {text!r} is not an IP address"))
            continue
        address, canonical = read
        if len(address) != length:
            problems.append(
                Problem("WrongFamilyEndpoint", f"endpoint address {text!r} is not {family.value}")
            )
        elif (reason := find_unusable_reason(address)) is not None:
            problems.append(Problem("ForbiddenEndpointAddress", f"endpoint address {text!r} is {reason}"))
        else:
            found.append((f"{canonical}:" if length == 4 else f"[{canonical}]:", address, endpoint))
    return found


@functools.lru_cache(maxsize=1024)
def _shared_key(name: str, protocol: str) -> PortKey:
    return sys.intern(name), Protocol[protocol]


def _port_key(port: SlicePort, problems: list[Problem]) -> PortKey | None:
    name = port.name or ""
    if port.port is None or not 1 <= port.port <= 65535:
        problems.append(Problem("BadEndpointPort", f"port {name!r}: number {port.port!r} cannot be used"))
        return None
    try:
        return _shared_key(name, port.protocol or "TCP")
    except KeyError:
        problems.append(Problem("BadEndpointPort", f"port {name!r}: protocol {port.protocol!r} is not known"))
        return None


def _endpoint(address: bytes, port: int, item: SliceEndpoint, node_name: str, weights: Weights) -> Endpoint:
    conditions, hints, target = item.conditions, item.hints, item.target_ref
    node, zone = item.node_name or "", item.zone or ""
    pod = target.name if target is not None and target.kind == "Pod" else ""
    state = shared_state(
        conditions is None or conditions.ready is not False,
        conditions is None or conditions.serving is not False,
        conditions is not None and conditions.terminating is True,
        node != "" and node == node_name,
        node,
        zone,
        _names(hints.for_zones) if hints else (),
        _names(hints.for_nodes) if hints else (),
        find_weight(weights, pod, node, zone) if weights else NO_WEIGHT,
    )
    return Endpoint(address, port, pod, state)


def _names(hints: list[Hint] | None) -> tuple[str, ...]:
    return tuple(sys.intern(hint.name) for hint in hints) if hints else ()
