"""Who owns a contested address: an index from (address, protocol, port) to the service ports that claim it.

Anyone who may create Services can name any external IP (CVE-2020-8554), and manifests may repeat an address.
The outcome must not depend on event order: cluster IPs beat everything else, at every port, then the older Service,
then the smaller name. A loser keeps its other frontends and gets the address as soon as the winner lets go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from pointsman.model.service import Protocol, ServicePort, ServicePortName

Claim = tuple[bytes, Protocol, int]
"""Address (empty for a node port), protocol, port."""

_Rank = tuple[int, str, ServicePortName]
_CLUSTER_IP, _ORDINARY = 0, 1
_Key = TypeVar("_Key")


class Winner(NamedTuple):
    """Who has what somebody else claims."""

    name: ServicePortName
    has_address: bool = False
    """It is the winner's cluster IP, which is its own at every port."""


class ClaimIndex:
    """Claims of all service ports of one IP family."""

    def __init__(self) -> None:
        self._claims = _Contenders[Claim]()
        self._cluster_ips = _Contenders[bytes]()
        self._outside = _Contenders[bytes]()
        """External and balancer addresses: they are lost to a Service that has one as its cluster IP."""
        self._held: dict[ServicePortName, ServicePort] = {}
        """What claims are made for; they follow from it, and are not kept a second time."""

    def update(self, name: ServicePortName, port: ServicePort | None) -> set[ServicePortName]:
        """Replace the claims of `name`; returns the other service ports whose outcome may have changed."""
        held = self._held.get(name)
        if port == held:
            return set()
        new, old = _claims_of(port), _claims_of(held)
        touched: set[ServicePortName] = set()
        for claim, rank in old.items():
            if new.get(claim) != rank:
                touched |= self._remove(claim, rank)
        for claim, rank in new.items():
            if old.get(claim) != rank:
                touched |= self._add(claim, rank)
        if port is not None:
            self._held[name] = port
        else:
            del self._held[name]
        touched.discard(name)
        return touched

    def lost(self, name: ServicePortName) -> dict[Claim, Winner]:
        """The claims of `name` that somebody else has won, with the winner."""
        beaten: dict[Claim, Winner] = {}
        for claim, rank in _claims_of(self._held.get(name)).items():
            owners = self._cluster_ips.of(claim[0]) if rank[0] == _ORDINARY else ()
            if owners and all(owner[2].key != name.key for owner in owners):
                beaten[claim] = Winner(owners[0][2], has_address=True)
                continue
            first = self._claims.of(claim)[0][2]
            if first != name:
                beaten[claim] = Winner(first)
        return beaten

    def _add(self, claim: Claim, rank: _Rank) -> set[ServicePortName]:
        touched = self._claims.add(claim, rank)
        if rank[0] == _CLUSTER_IP:
            self._cluster_ips.add(claim[0], rank)
            touched |= self._outside.names(claim[0])
        elif claim[0]:
            self._outside.add(claim[0], rank)
        return touched

    def _remove(self, claim: Claim, rank: _Rank) -> set[ServicePortName]:
        touched = self._claims.remove(claim, rank)
        if rank[0] == _CLUSTER_IP:
            self._cluster_ips.remove(claim[0], rank)
            touched |= self._outside.names(claim[0])
        elif claim[0]:
            self._outside.remove(claim[0], rank)
        return touched


class _Contenders(Generic[_Key]):
    """Who wants what, best first; a list only where there are several, because nearly always there is one."""

    def __init__(self) -> None:
        self._ranks: dict[_Key, _Rank | list[_Rank]] = {}

    def of(self, key: _Key) -> Sequence[_Rank]:
        ranks = self._ranks.get(key, ())
        return ranks if isinstance(ranks, list) else (ranks,) if ranks else ()

    def names(self, key: _Key) -> set[ServicePortName]:
        return {rank[2] for rank in self.of(key)}

    def add(self, key: _Key, rank: _Rank) -> set[ServicePortName]:
        """Returns all who want it, if there are several."""
        ranks = self._ranks.get(key)
        if ranks is None:
            self._ranks[key] = rank
            return set()
        self._ranks[key] = sorted([*self.of(key), rank])
        return self.names(key)

    def remove(self, key: _Key, rank: _Rank) -> set[ServicePortName]:
        """Returns those who still want it."""
        remaining = [contender for contender in self.of(key) if contender != rank]
        if not remaining:
            del self._ranks[key]
            return set()
        self._ranks[key] = remaining if len(remaining) > 1 else remaining[0]
        return self.names(key)


def _claims_of(port: ServicePort | None) -> dict[Claim, _Rank]:
    return dict(_claims(port)) if port is not None else {}


def _claims(port: ServicePort) -> Iterator[tuple[Claim, _Rank]]:
    protocol = port.protocol
    ordinary: _Rank = (_ORDINARY, port.created, port.name)
    for address in (*port.external_ips, *port.load_balancer_ips):
        yield (address, protocol, port.port), ordinary
    if port.node_port:
        yield (b"", protocol, port.node_port), ordinary
    yield (port.cluster_ip, protocol, port.port), (_CLUSTER_IP, port.created, port.name)
