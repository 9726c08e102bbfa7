"""Endpoints of service ports: packed address and port, state and hints."""

from __future__ import annotations

import functools

import msgspec

from pointsman.model.addresses import host_port_text

NO_WEIGHT = -1
FULL_SHARE = 100
_MAX_SHARED_STATES = 16384

Identity = tuple[bytes, int]
"""Address and port; unique among the endpoints of a service port."""


class EndpointState(msgspec.Struct, frozen=True, gc=False):
    """State that many endpoints share."""

    ready: bool = True
    serving: bool = True
    terminating: bool = False
    local: bool = False
    node: str = ""
    zone: str = ""
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()
    weight: int = NO_WEIGHT
    """Given by the slice."""
    share: int = FULL_SHARE
    """Current percentage of its weight."""


shared_state = functools.lru_cache(_MAX_SHARED_STATES)(EndpointState)
"""Return a shared state: a hundred thousand endpoints have a few thousand different ones."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One endpoint of one service port."""

    address: bytes
    port: int
    pod: str = ""
    """Name of the pod, where the slice has one; its namespace is that of the Service."""
    state: EndpointState = EndpointState()

    @property
    def identity(self) -> Identity:
        return self.address, self.port

    @property
    def ready(self) -> bool:
        return self.state.ready

    @property
    def serving(self) -> bool:
        return self.state.serving

    @property
    def terminating(self) -> bool:
        return self.state.terminating

    @property
    def local(self) -> bool:
        """Its nodeName is this node."""
        return self.state.local

    @property
    def node(self) -> str:
        return self.state.node

    @property
    def zone(self) -> str:
        return self.state.zone

    def with_share(self, share: int) -> Endpoint:
        return Endpoint(self.address, self.port, self.pod, msgspec.structs.replace(self.state, share=share))

    def __str__(self) -> str:
        return host_port_text(self.address, self.port)
