"""From EndpointSlices to endpoints per service port.

A Service may have many slices, and the same address may be in two of them with different conditions while a controller
moves it, or when a pod network reuses the address of a terminating pod. The entry that is not terminating wins, then the
better state, so the result does not depend on the order of events.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from operator import itemgetter

import msgspec

from pointsman.model.addresses import (
    Family,
    address_and_text,
    find_unusable_reason,
    host_port_text,
)
from pointsman.model.balancing import Weights, find_weight, parse_weights
from pointsman.model.endpoint import NO_WEIGHT, Endpoint, EndpointState, Identity, shared_state
from pointsman.model.findings import Code, Finding, Value, clip
from pointsman.model.objects import EndpointSlice, Hint, SliceEndpoint, SlicePort
from pointsman.model.service import Protocol

PortKey = tuple[str, Protocol]
"""Port name and protocol, which connect a port of a slice with a port of a Service."""

SliceEndpoints = dict[PortKey, tuple[Endpoint, ...]]

MAX_ENDPOINT_PORTS = 100_000
"""Limit of endpoints times ports of one slice. The API allows 1,000 times 20,000, too much for a node."""


class _SliceState(msgspec.Struct, frozen=True, gc=False):
    """Endpoints of one slice, by port of its Service."""

    service_key: str
    ports: tuple[tuple[PortKey, tuple[Endpoint, ...]], ...]


class SliceIndex:
    """The slices of one IP family by key, and those of each Service."""

    def __init__(self) -> None:
        self._slices: dict[str, _SliceState] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        """By Service. Most have one slice, and a tuple takes a quarter of the memory of a dictionary."""

    def find_service(self, key: str) -> str | None:
        """Return the key of the Service that a slice belongs to; None for an unknown slice."""
        known = self._slices.get(key)
        return known.service_key if known is not None else None

    def replace(self, key: str, service_key: str, endpoints: SliceEndpoints) -> bool:
        """Add or replace a slice, which must not belong to another Service; return whether it differs."""
        known = self._slices.get(key)
        found = _SliceState(service_key, tuple(endpoints.items()))
        if found == known:
            return False
        if known is None:
            self._keys[service_key] = (*self._keys.get(service_key, ()), key)
        self._slices[key] = found
        return True

    def remove(self, key: str) -> str | None:
        """Remove a slice; return the key of its Service, None for an unknown slice."""
        known = self._slices.pop(key, None)
        if known is None:
            return None
        rest = tuple(one for one in self._keys.pop(known.service_key) if one != key)
        if rest:
            self._keys[known.service_key] = rest
        return known.service_key

    def list_endpoints(self, service_key: str) -> dict[PortKey, list[tuple[Endpoint, ...]]]:
        """Return the endpoints of a Service by port, one list from each slice that has any."""
        lists: dict[PortKey, list[tuple[Endpoint, ...]]] = {}
        for key in self._keys.get(service_key, ()):
            for port, endpoints in self._slices[key].ports:
                if endpoints:
                    lists.setdefault(port, []).append(endpoints)
        return lists

    def count_endpoints(self, service_key: str) -> dict[str, dict[PortKey, int]]:
        """Return the slices of a Service, each with the number of endpoints per port, for explanations."""
        return {
            key: {port: len(endpoints) for port, endpoints in self._slices[key].ports}
            for key in self._keys.get(service_key, ())
        }


def parse_slice_endpoints(
    endpoint_slice: EndpointSlice, family: Family, node_name: str
) -> tuple[SliceEndpoints, list[Finding]]:
    """Return sorted endpoints of this family by port, and findings. Never raises on bad content."""
    findings: list[Finding] = []
    if endpoint_slice.address_type != family.value:
        return {}, findings
    located = sorted(_find_usable_endpoints(endpoint_slice, family, findings), key=_SORT_KEY)
    weights = parse_weights(endpoint_slice.metadata, findings)
    usable = [(address, *_build_state(item, node_name, weights)) for _, address, item in located]
    unique = len({address for address, *_ in usable}) == len(usable)
    found: SliceEndpoints = {}
    capacity = MAX_ENDPOINT_PORTS
    for port in endpoint_slice.ports or ():
        key = _parse_port_key(port, findings)
        if key is None or port.port is None:
            continue
        capacity -= len(usable)
        if capacity < 0:
            parameters: dict[str, Value] = {
                "port": clip(port.name or ""),
                "endpoints": len(usable),
                "limit": MAX_ENDPOINT_PORTS,
            }
            findings.append(Finding(Code.TOO_MANY_ENDPOINT_PORTS, parameters=parameters))
            break
        number = port.port
        entries = tuple([Endpoint(address, number, pod, state) for address, pod, state in usable])
        if key in found:
            found[key] = merge_endpoints([found[key], entries])
        else:
            found[key] = entries if unique else merge_endpoints([entries])
    return found, findings


def merge_endpoints(
    lists: Iterable[tuple[Endpoint, ...]], texts: dict[bytes, str] | None = None
) -> tuple[Endpoint, ...]:
    """Return one entry per address and port, in the better state, ordered by the text `ip:port` as kube-proxy does.

    `texts` keeps the text of each address for further calls: the ports of a Service have the same addresses.
    """
    best: dict[Identity, Endpoint] = {}
    for endpoints in lists:
        for endpoint in endpoints:
            key = (endpoint.address, endpoint.port)  # its identity, without the price of a property
            known = best.get(key)
            if known is None or _compute_rank(endpoint) > _compute_rank(known):
                best[key] = endpoint
    known_texts = {} if texts is None else texts
    keyed = []
    for (address, port), endpoint in best.items():
        text = known_texts.get(address)
        if text is None:
            text = known_texts[address] = host_port_text(address, "")
        keyed.append((f"{text}{port}", endpoint))
    keyed.sort(key=_SORT_KEY)
    return tuple([endpoint for _, endpoint in keyed])


def _compute_rank(
    endpoint: Endpoint,
) -> tuple[bool, bool, bool, bool, tuple[str, ...], tuple[str, ...], str, str, str, int]:
    return (
        not endpoint.terminating,
        endpoint.ready,
        endpoint.serving,
        endpoint.local,
        endpoint.state.zone_hints,
        endpoint.state.node_hints,
        endpoint.node,
        endpoint.zone,
        endpoint.pod,
        endpoint.state.weight,
    )


_Located = tuple[str, bytes, SliceEndpoint]
"""Sort key, packed address and endpoint. The key sorts as `merge_endpoints` does, once for all ports of a slice."""
_SORT_KEY = itemgetter(0)


def _find_usable_endpoints(
    endpoint_slice: EndpointSlice, family: Family, findings: list[Finding]
) -> list[_Located]:
    found: list[_Located] = []
    length = family.address_length
    for endpoint in endpoint_slice.endpoints or ():
        if not endpoint.addresses:
            findings.append(Finding(Code.ENDPOINT_WITHOUT_ADDRESS))
            continue
        text = endpoint.addresses[0]
        read = address_and_text(text)
        if read is None:
            findings.append(Finding(Code.BAD_ENDPOINT_ADDRESS, parameters={"value": clip(text)}))
            continue
        address, canonical = read
        if len(address) != length:
            parameters = {"value": clip(text), "family": family.value}
            findings.append(Finding(Code.WRONG_FAMILY_ENDPOINT, parameters=parameters))
        elif (reason := find_unusable_reason(address)) is not None:
            parameters = {"value": clip(text), "reason": reason}
            findings.append(Finding(Code.FORBIDDEN_ENDPOINT_ADDRESS, parameters=parameters))
        else:
            found.append((f"{canonical}:" if length == 4 else f"[{canonical}]:", address, endpoint))
    return found


@functools.lru_cache(maxsize=1024)
def _build_shared_key(name: str, protocol: str) -> PortKey:
    return sys.intern(name), Protocol[protocol]


def _parse_port_key(port: SlicePort, findings: list[Finding]) -> PortKey | None:
    name = port.name or ""
    if port.port is None or not 1 <= port.port <= 65535:
        parameters = {"port": clip(name), "field": "number", "value": str(port.port)}
        findings.append(Finding(Code.BAD_ENDPOINT_PORT, parameters=parameters))
        return None
    try:
        return _build_shared_key(name, port.protocol or "TCP")
    except KeyError:
        parameters = {"port": clip(name), "field": "protocol", "value": clip(port.protocol or "")}
        findings.append(Finding(Code.BAD_ENDPOINT_PORT, parameters=parameters))
        return None


def _build_state(item: SliceEndpoint, node_name: str, weights: Weights) -> tuple[str, EndpointState]:
    """Return pod and state of an endpoint, which are the same at all ports."""
    conditions, hints, target = item.conditions, item.hints, item.target_ref
    node, zone = item.node_name or "", item.zone or ""
    pod = target.name if target is not None and target.kind == "Pod" else ""
    return pod, shared_state(
        conditions is None or conditions.ready is not False,
        conditions is None or conditions.serving is not False,
        conditions is not None and conditions.terminating is True,
        node != "" and node == node_name,
        node,
        zone,
        _intern_names(hints.for_zones) if hints else (),
        _intern_names(hints.for_nodes) if hints else (),
        find_weight(weights, pod, node, zone) if weights else NO_WEIGHT,
    )


def _intern_names(hints: list[Hint] | None) -> tuple[str, ...]:
    return tuple(sys.intern(hint.name) for hint in hints) if hints else ()
