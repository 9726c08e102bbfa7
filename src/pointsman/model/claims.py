"""Who owns a contested address: an index from (address, protocol, port) to the service ports that claim it.

Anyone who may create Services can name any external IP (CVE-2020-8554), and manifests may repeat an address.
The outcome must not depend on event order: cluster IPs beat everything else, then the older Service, then the
smaller name. A loser keeps its other frontends and gets the address as soon as the winner lets go.
"""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.model.service import Protocol, ServicePort, ServicePortName

Claim = tuple[bytes, Protocol, int]
"""Address (empty for a node port), protocol, port."""

_Rank = tuple[int, str, ServicePortName]


class ClaimIndex:
    """Claims of all service ports of one IP family."""

    def __init__(self) -> None:
        self._ranks: dict[Claim, _Rank | list[_Rank]] = {}
        self._held: dict[ServicePortName, dict[Claim, _Rank]] = {}

    def update(self, name: ServicePortName, port: ServicePort | None) -> set[ServicePortName]:
        """Replace the claims of `name`; returns the other service ports whose outcome may have changed."""
        new = dict(_claims(port)) if port is not None else {}
        old = self._held.get(name, {})
        if new == old:
            return set()
        touched: set[ServicePortName] = set()
        for claim, rank in old.items():
            if new.get(claim) != rank:
                touched |= self._remove(claim, rank)
        for claim, rank in new.items():
            if old.get(claim) != rank:
                touched |= self._add(claim, rank)
        if new:
            self._held[name] = new
        else:
            self._held.pop(name, None)
        touched.discard(name)
        return touched

    def lost(self, name: ServicePortName) -> dict[Claim, ServicePortName]:
        """The claims of `name` that somebody else has won, with the winner."""
        beaten: dict[Claim, ServicePortName] = {}
        for claim in self._held.get(name, ()):
            ranks = self._ranks[claim]
            if isinstance(ranks, list) and ranks[0][2] != name:
                beaten[claim] = ranks[0][2]
        return beaten

    def _add(self, claim: Claim, rank: _Rank) -> set[ServicePortName]:
        ranks = self._ranks.get(claim)
        if ranks is None:
            self._ranks[claim] = rank
            return set()
        contenders = sorted([*ranks, rank] if isinstance(ranks, list) else [ranks, rank])
        self._ranks[claim] = contenders
        return {contender[2] for contender in contenders}

    def _remove(self, claim: Claim, rank: _Rank) -> set[ServicePortName]:
        ranks = self._ranks[claim]
        if not isinstance(ranks, list):
            del self._ranks[claim]
            return set()
        remaining = [contender for contender in ranks if contender != rank]
        self._ranks[claim] = remaining if len(remaining) > 1 else remaining[0]
        return {contender[2] for contender in remaining}


def _claims(port: ServicePort) -> Iterator[tuple[Claim, _Rank]]:
    protocol = port.protocol
    ordinary: _Rank = (1, port.created, port.name)
    for address in (*port.external_ips, *port.load_balancer_ips):
        yield (address, protocol, port.port), ordinary
    if port.node_port:
        yield (b"", protocol, port.node_port), ordinary
    yield (port.cluster_ip, protocol, port.port), (0, port.created, port.name)
