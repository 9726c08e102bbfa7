"""Where packets to a service port pass netfilter on this host, and what is known of them there. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from pointsman.explain.packets import Client, decide
from pointsman.explain.rule_walk import Packet
from pointsman.explain.view import FamilyView, View
from pointsman.kernel.nfnl import NFPROTO
from pointsman.machine import packet_filter as pf
from pointsman.machine.nft_matches import NAME_LENGTH
from pointsman.machine.packet_filter import PacketField
from pointsman.model.decision import ClientKind
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import LocalMode
from pointsman.model.plan import Frontend, ServicePlan

if TYPE_CHECKING:
    from pointsman.machine.host_facts import HostFacts

TRANSLATION = -100
"""The priority at which service proxies translate destinations."""
MAX_ENDPOINTS_FOLLOWED = 8
"""Through the rules of others, per frontend and client: those for further endpoints rarely differ."""


class Stage(msgspec.Struct, frozen=True):
    """A packet at one hook, before and after the proxy gave it its endpoint."""

    hook: str
    before: Packet
    after: Packet

    def select_packet(self, priority: int) -> Packet:
        return self.before if priority < TRANSLATION else self.after


class Journey(msgspec.Struct, frozen=True):
    """The first packet of a connection, from one client to one endpoint by one frontend."""

    client: Client
    frontend: Frontend
    endpoint: Endpoint
    stages: tuple[Stage, ...]
    """Empty where the rules of others are not followed."""
    local: bool
    """The endpoint is at an address of this node: nothing is forwarded."""


def build_journeys(
    view: View,
    family: FamilyView,
    host: HostFacts,
    plan: ServicePlan,
    asked: tuple[Frontend, ...],
    clients: tuple[Client, ...],
) -> Iterator[Journey]:
    """Yield every way that a connection asked about may take."""
    for frontend in asked:
        for client in clients:
            endpoints = decide(plan, frontend, client, family, view.mode).endpoints
            for number, endpoint in enumerate(endpoints):
                local = endpoint.address in family.node_addresses
                builder = _StageBuilder(family, host, plan, frontend, client, endpoint)
                stages = builder.build(local=local, by_input=view.mode.quirks.holds_addresses)
                followed = tuple(stages) if number < MAX_ENDPOINTS_FOLLOWED else ()
                yield Journey(client, frontend, endpoint, followed, local)


class _StageBuilder:
    def __init__(
        self,
        family: FamilyView,
        host: HostFacts,
        plan: ServicePlan,
        frontend: Frontend,
        client: Client,
        endpoint: Endpoint,
    ) -> None:
        self._family, self._host = family, host
        self._plan, self._frontend = plan, frontend
        self._client, self._endpoint = client, endpoint

    def build(self, *, local: bool, by_input: bool) -> Iterator[Stage]:
        before, after = self._build_before(), self._build_after()
        if self._client.kind is ClientKind.NODE:
            yield Stage("output", before, after)
        else:
            yield Stage("prerouting", before, after)
        if by_input:
            yield Stage("input", before, before)
            yield Stage("output", after, after)
        elif local:
            yield Stage("input", after, after)
            return
        elif self._client.kind is not ClientKind.NODE:
            yield Stage("forward", after, after)
        yield Stage("postrouting", after, after)

    def _list_known(self) -> dict[PacketField, tuple[bytes, bytes]]:
        protocol = bytes((self._plan.port.protocol.value,))
        family = bytes((NFPROTO[self._family.family],))
        known = {PacketField.FAMILY: (family, family), PacketField.PROTOCOL: (protocol, protocol)}
        source = self._find_source()
        if source is not None:
            known[PacketField.SOURCE] = source
        arriving = self._host.routes.get(self._client.address)
        if arriving is not None and arriving.interface and self._client.kind is not ClientKind.NODE:
            known[PacketField.IN_INTERFACE] = _encode_name(arriving.interface)
        return known

    def _find_source(self) -> tuple[bytes, bytes] | None:
        address, local = self._client.address, self._family.context.local
        if address:
            return address, address
        if self._client.kind is ClientKind.NODE:
            route = self._host.routes.get(self._endpoint.address)
            return (route.source, route.source) if route is not None and route.source else None
        if self._client.kind is ClientKind.POD and local.mode is LocalMode.CIDR and local.cidr is not None:
            cidr = local.cidr
            return cidr.network, cidr.last.to_bytes(len(cidr.network), "big")
        return None

    def _build_before(self) -> Packet:
        known = self._list_known()
        known[PacketField.DESTINATION_PORT] = _encode_port(self._frontend.port)
        if self._frontend.address:
            known[PacketField.DESTINATION] = (self._frontend.address, self._frontend.address)
        return Packet(known, {PacketField.CT_STATE: pf.NEW, PacketField.CT_STATUS: 0})

    def _build_after(self) -> Packet:
        known = self._list_known()
        known[PacketField.DESTINATION_PORT] = _encode_port(self._endpoint.port)
        known[PacketField.DESTINATION] = (self._endpoint.address, self._endpoint.address)
        route = self._host.routes.get(self._endpoint.address)
        if route is not None and route.interface:
            known[PacketField.OUT_INTERFACE] = _encode_name(route.interface)
        return Packet(
            known,
            {PacketField.CT_STATE: pf.NEW | pf.STATE_DNAT, PacketField.CT_STATUS: pf.STATUS_DNAT},
        )


def _encode_port(number: int) -> tuple[bytes, bytes]:
    packed = number.to_bytes(2, "big")
    return packed, packed


def _encode_name(interface: str) -> tuple[bytes, bytes]:
    padded = interface.encode().ljust(NAME_LENGTH, b"\0")
    return padded, padded
