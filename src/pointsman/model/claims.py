"""Ownership of contested addresses: an index from (address, protocol, port) to the service ports that claim it.

Everyone who may create Services can name any external IP (CVE-2020-8554), and manifests may repeat an address.
The outcome never depends on event order. Cluster IPs take precedence over everything else, at every port, then the older
Service, then the smaller name. A service port that loses a claim keeps its other frontends, and gets the address as soon
as the owner releases it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from pointsman.model.service import Protocol, ServicePort, ServicePortName

Claim = tuple[bytes, Protocol, int]
"""Address (empty for a node port), protocol, port."""

_Rank = tuple[int, str, ServicePortName]
_CLUSTER_IP, _ORDINARY = 0, 1
_Key = TypeVar("_Key")


class Winner(NamedTuple):
    """The owner of a contested address."""

    name: ServicePortName
    has_address: bool = False
    """It is the cluster IP of the owner, at every port."""


class ClaimIndex:
    """Claims of all service ports of one IP family.

    Replacing a claim costs the logarithm of the number of its contenders. All of them are named only when the owner
    changed, once per `take_affected`, however many were replaced before.
    """

    def __init__(self) -> None:
        self._claims = _Contenders[Claim]()
        self._cluster_ips = _Contenders[bytes]()
        self._external = _Contenders[bytes]()
        """External and load-balancer addresses: they are lost to a Service that has one as its cluster IP."""
        self._changed_claims: set[Claim] = set()
        self._changed_cluster_ips: set[bytes] = set()

    def replace(self, old: ServicePort | None, new: ServicePort | None) -> None:
        """Replace the claims of a service port; None where it did not exist or does not exist any more."""
        if old == new:
            return
        before, after = _collect_claims(old), _collect_claims(new)
        for claim, rank in before.items():
            if after.get(claim) != rank:
                self._remove(claim, rank)
        for claim, rank in after.items():
            if before.get(claim) != rank:
                self._add(claim, rank)

    def take_affected(self) -> set[ServicePortName]:
        """Return the contenders of everything that changed its owner since the last call.

        A service port whose own claims were replaced may be missing: it has to be planned anyway.
        """
        affected: set[ServicePortName] = set()
        for claim in self._changed_claims:
            affected |= self._claims.find_names(claim)
        for address in self._changed_cluster_ips:
            affected |= self._external.find_names(address)
        self._changed_claims, self._changed_cluster_ips = set(), set()
        return affected

    def find_lost(self, port: ServicePort) -> dict[Claim, Winner]:
        """Return the claims of a service port that others own, with the owner."""
        lost: dict[Claim, Winner] = {}
        for claim, rank in _collect_claims(port).items():
            owner = self._cluster_ips.find_first(claim[0]) if rank[0] == _ORDINARY else None
            if owner is not None and claim[0] != port.cluster_ip:
                lost[claim] = Winner(owner, has_address=True)
                continue
            first = self._claims.find_first(claim)
            if first is not None and first != port.name:
                lost[claim] = Winner(first)
        return lost

    def _add(self, claim: Claim, rank: _Rank) -> None:
        address = claim[0]
        if self._claims.add(claim, rank):
            self._changed_claims.add(claim)
        if rank[0] == _CLUSTER_IP:
            self._cluster_ips.add(address, rank)
            self._note_cluster_ip(address)
        elif address:
            self._external.add(address, rank)

    def _remove(self, claim: Claim, rank: _Rank) -> None:
        address = claim[0]
        if self._claims.remove(claim, rank):
            self._changed_claims.add(claim)
        if rank[0] == _CLUSTER_IP:
            self._cluster_ips.remove(address, rank)
            self._note_cluster_ip(address)
        elif address:
            self._external.remove(address, rank)

    def _note_cluster_ip(self, address: bytes) -> None:
        if address in self._external:
            self._changed_cluster_ips.add(address)


class _Contenders(Generic[_Key]):
    """Contenders of each key, the owner first; a list only where there are several, because that is rare."""

    def __init__(self) -> None:
        self._ranks: dict[_Key, _Rank | list[_Rank]] = {}

    def __contains__(self, key: _Key) -> bool:
        return key in self._ranks

    def find_names(self, key: _Key) -> set[ServicePortName]:
        ranks = self._ranks.get(key, ())
        return {rank[2] for rank in ranks} if isinstance(ranks, list) else {ranks[2]} if ranks else set()

    def find_first(self, key: _Key) -> ServicePortName | None:
        ranks = self._ranks.get(key)
        if ranks is None:
            return None
        return ranks[0][2] if isinstance(ranks, list) else ranks[2]

    def add(self, key: _Key, rank: _Rank) -> bool:
        """Return whether another contender lost the key by this."""
        ranks = self._ranks.get(key)
        if ranks is None:
            self._ranks[key] = rank
            return False
        if not isinstance(ranks, list):
            ranks = self._ranks[key] = [ranks]
        insort(ranks, rank)
        return ranks[0] is rank

    def remove(self, key: _Key, rank: _Rank) -> bool:
        """Return whether another contender got the key by this."""
        ranks = self._ranks[key]
        if not isinstance(ranks, list):
            del self._ranks[key]
            return False
        position = bisect_left(ranks, rank)
        del ranks[position]
        if len(ranks) == 1:
            self._ranks[key] = ranks[0]
        return position == 0


def _collect_claims(port: ServicePort | None) -> dict[Claim, _Rank]:
    return dict(_list_claims(port)) if port is not None else {}


def _list_claims(port: ServicePort) -> Iterator[tuple[Claim, _Rank]]:
    protocol = port.protocol
    ordinary: _Rank = (_ORDINARY, port.service.created, port.name)
    for address in (*port.external_ips, *port.load_balancer_ips):
        yield (address, protocol, port.port), ordinary
    if port.node_port:
        yield (b"", protocol, port.node_port), ordinary
    yield (port.cluster_ip, protocol, port.port), (_CLUSTER_IP, port.service.created, port.name)
