"""Graceful termination: which real servers are draining, and until when.

A real server that is no longer wanted gets weight 0, so that no new connection reaches it, and is removed once its last
connection has ended or its timeout is over. Weight 0 is kernel state, so a restarted proxy finds what its predecessor was
draining. UDP and SCTP have no connections worth waiting for: their real servers are removed at once, and
expire_nodest_conn moves the clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.backends.ipvs.steps import RemoveReals, WeighReals
from pointsman.kernel.ipvs_objects import RealKey, RealOf, RealServer, VirtualKey

TCP = 6


class Draining:
    """The real servers at weight 0, each with its deadline. Times are seconds of one clock."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._deadlines: dict[RealOf, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, item: object) -> bool:
        return item in self._deadlines

    def reals(self) -> list[RealOf]:
        return list(self._deadlines)

    def steps(
        self, leaving: Iterable[RealOf], present: Mapping[RealOf, RealServer], now: float
    ) -> tuple[WeighReals, RemoveReals]:
        """Return the steps for real servers that are no longer wanted, given what the kernel reports of the TCP ones."""
        remove: list[RealOf] = []
        quiesce: list[RealOf] = []
        for item in leaving:
            real = present.get(item)
            deadline = self._deadlines.setdefault(item, now + self._timeout)
            if item.server.protocol != TCP or real is None or not real.connections or now >= deadline:
                del self._deadlines[item]
                remove.append(item)
            elif real.weight:
                quiesce.append(item)
        return WeighReals(quiesce, 0), RemoveReals(remove)

    def retain(self, weights: Mapping[VirtualKey, Mapping[RealKey, int]]) -> None:
        """Forget real servers that are wanted again or gone, alone or with their virtual server."""
        for item in self.reals():
            if weights.get(item.server, {}).get(item.real) != 0:
                del self._deadlines[item]
