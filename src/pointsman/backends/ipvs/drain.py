"""Graceful termination: which real servers are on their way out, and since when.

A real server that should go gets weight 0, so that no new connection reaches it, and is removed once its last
connection is gone, or when its time is up, so that nothing lingers for ever. Weight 0 lives in the kernel, which
is why a restarted proxy finds what its predecessor was draining. UDP and SCTP have no connections worth waiting
for: their real servers go at once and expire_nodest_conn moves the clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pointsman.kernel.ipvs_objects import RealKey, RealServer, VirtualKey

TCP = 6


class Departure(NamedTuple):
    """A real server of a virtual server."""

    server: VirtualKey
    real: RealKey


class Verdict(NamedTuple):
    """What to do with the real servers of one virtual server that should go."""

    remove: list[RealKey]
    quiesce: list[RealKey]
    """To be set to weight 0; they already count as draining."""


class Draining:
    """The real servers at weight 0, each with the time at which patience ends. Times are seconds of one clock."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._deadlines: dict[Departure, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, departure: object) -> bool:
        return departure in self._deadlines

    def servers(self) -> set[VirtualKey]:
        """Virtual servers that have something draining."""
        return {departure.server for departure in self._deadlines}

    def verdict(
        self, server: VirtualKey, leaving: Iterable[RealKey], present: Iterable[RealServer], now: float
    ) -> Verdict:
        """Decide about real servers that are not wanted any more, given what the kernel has."""
        have = {real.key: real for real in present}
        remove: list[RealKey] = []
        quiesce: list[RealKey] = []
        for key in leaving:
            real, departure = have.get(key), Departure(server, key)
            if real is None:
                self._deadlines.pop(departure, None)
                continue
            deadline = self._deadlines.setdefault(departure, now + self._patience)
            if server.protocol != TCP or not real.connections or now >= deadline:
                del self._deadlines[departure]
                remove.append(key)
            elif real.weight:
                quiesce.append(key)
        return Verdict(remove, quiesce)

    def leaving(self, server: VirtualKey) -> list[RealKey]:
        return [departure.real for departure in self._deadlines if departure.server == server]

    def forget(self, server: VirtualKey, real: RealKey | None = None) -> None:
        """A real server is wanted again, or (without one) its virtual server is gone."""
        if real is not None:
            self._deadlines.pop(Departure(server, real), None)
            return
        for departure in [departure for departure in self._deadlines if departure.server == server]:
            del self._deadlines[departure]
