"""The connections of all served ports together: how many there may be, and which one goes when there are too many.

The ports are open to the network without authentication, as kube-proxy's are. Whoever holds connections without
using them must not keep probes out: a newcomer takes the place of the connection that has been idle for longest.
Clients on this node (the kubelet, scrapers, a shell) have a share of their own, which no stranger can take.
Descriptors are kept in reserve, so that the watches of the API server can always be opened again.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from pointsman.serve.troubles import Trouble, Troubles

STRANGERS: Final = 512
RESIDENTS: Final = 128
IDLE_SECONDS: Final = 30.0
RESERVE: Final = 64
"""Descriptors that connections leave to the rest of the process."""

_FEWEST: Final = 4
_MOST_LEAVING: Final = 16
_LOOK_SECONDS: Final = 1.0


class Guest(Protocol):
    """An open connection."""

    def drop(self) -> None:
        """Close it at once."""


class _Share:
    """Connections that compete with each other."""

    def __init__(self) -> None:
        self.idle: dict[Guest, None] = {}
        """The one that is idle for longest comes first."""
        self.busy: set[Guest] = set()

    def __len__(self) -> int:
        return len(self.idle) + len(self.busy)


class Connections:
    """One budget for every port; used from the event loop only."""

    def __init__(
        self,
        troubles: Troubles | None = None,
        *,
        strangers: int = STRANGERS,
        residents: int = RESIDENTS,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.troubles = Troubles() if troubles is None else troubles
        self.idle_seconds = idle_seconds
        """Nobody keeps a connection without a request for longer, however few there are."""
        self._clock = clock
        self._most_strangers, self._most_residents = strangers, residents
        self._strangers, self._residents = _Share(), _Share()
        self._share_of: dict[Guest, _Share] = {}
        self._leaving: set[Guest] = set()
        """Dropped, but not closed yet."""
        self._looked = float("-inf")
        self._descriptors_left = 0

    def admit(self, guest: Guest, *, resident: bool, client: str = "") -> bool:
        """Count the newcomer in, at the cost of an idle one if need be; False when there is no room for it."""
        share = self._residents if resident else self._strangers
        limit = self._limit(resident)
        while len(share) >= limit:
            if not self._evict(share):
                self.troubles.report(Trouble.REFUSED, client=client)
                return False
        share.idle[guest] = None
        self._share_of[guest] = share
        return True

    def began(self, guest: Guest) -> None:
        """The guest's request is being answered."""
        share = self._share_of.get(guest)
        if share is not None:
            share.idle.pop(guest, None)
            share.busy.add(guest)

    def ended(self, guest: Guest) -> None:
        """It is idle again, from now on; a client that does not read its answer counts as idle, too."""
        share = self._share_of.get(guest)
        if share is not None:
            share.busy.discard(guest)
            share.idle[guest] = None

    def left(self, guest: Guest) -> None:
        """The connection is closed."""
        self._leaving.discard(guest)
        self._forget(guest)

    def make_room(self) -> None:
        """Close some connections of strangers: descriptors are lacking."""
        while not self.crowded and self._evict(self._strangers):
            pass

    def _evict(self, share: _Share) -> bool:
        """Close the connection that is idle for longest; False when all are busy."""
        guest = next(iter(share.idle), None)
        if guest is None:
            return False
        self._forget(guest)
        self._leaving.add(guest)
        self.troubles.report(Trouble.EVICTED)
        guest.drop()
        return True

    @property
    def crowded(self) -> bool:
        """So many are about to be closed that nobody new should be let in before."""
        return len(self._leaving) >= _MOST_LEAVING

    def _forget(self, guest: Guest) -> None:
        share = self._share_of.pop(guest, None)
        if share is not None:
            share.idle.pop(guest, None)
            share.busy.discard(guest)

    def _limit(self, resident: bool) -> int:
        now = self._clock()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            used_otherwise = _open_descriptors() - len(self._share_of) - len(self._leaving)
            self._descriptors_left = descriptor_limit() - RESERVE - used_otherwise
        residents = min(self._most_residents, max(_FEWEST, self._descriptors_left // 4))
        if resident:
            return residents
        return min(self._most_strangers, max(_FEWEST, self._descriptors_left - residents))


def descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
