"""The connections of all served ports together: how many there may be, which one goes when there are too many, who waits.

The ports are open to the network without authentication, as kube-proxy's are. Whoever holds connections, without using
them or by asking without end, must not keep probes out. A newcomer takes the place of the connection that asks without
a pause, or else of the one that has been idle for longest; and all strangers who ask without a pause are answered one after
the other, so that however many they are, nobody else waits for them. Answers that are left unread have a limit together.
Clients on this node (the kubelet, scrapers, a shell) have a share of their own, which no stranger can take.
Descriptors are kept in reserve, so that the watches of the API server can always be opened again.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from pointsman.serve.troubles import Trouble, Troubles

STRANGERS: Final = 512
RESIDENTS: Final = 128
IDLE_SECONDS: Final = 30.0
RESERVE: Final = 64
"""Descriptors that connections leave to the rest of the process."""
MOST_UNREAD: Final = 32 << 20
"""Bytes of answers that wait to be read, of strangers and of clients on this node each."""

_FEWEST: Final = 4
_MOST_LEAVING: Final = 16
_LOOK_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 1.0
"""Probes and scrapers make longer ones between two requests on one connection."""
_GREEDY: Final = 8
"""Answers without a pause that no probe and no scraper asks for."""
_TURN_SECONDS: Final = 0.002
"""One answer in that time is for a stranger who asks without a pause, the rest of the time for everything else."""


class Guest(Protocol):
    """An open connection."""

    def drop(self) -> None:
        """Close it at once."""


class _Share:
    """Connections that compete with each other."""

    def __init__(self) -> None:
        self.idle: dict[Guest, float] = {}
        """Since when; the one that is idle for longest comes first."""
        self.busy: set[Guest] = set()
        self.unread: dict[Guest, int] = {}
        """Bytes; the oldest answer comes first."""

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
        most_unread: int = MOST_UNREAD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.troubles = Troubles() if troubles is None else troubles
        self.idle_seconds = idle_seconds
        """Nobody keeps a connection without a request for longer, however few there are."""
        self._most_unread = most_unread
        self._clock = clock
        self._most_strangers, self._most_residents = strangers, residents
        self._strangers, self._residents = _Share(), _Share()
        self._share_of: dict[Guest, _Share] = {}
        self._streaks: dict[Guest, int] = {}
        """Answers that each has had without a pause between them."""
        self._one_by_one = asyncio.Lock()
        self._leaving: set[Guest] = set()
        """Dropped, but not closed yet."""
        self._waiting_for_room: deque[Callable[[], None]] = deque()
        self._looked = float("-inf")
        self._descriptors_left = 0

    def admit(self, guest: Guest, *, resident: bool, client: str = "") -> bool:
        """Count the newcomer in, at the cost of another if need be; False when there is no room for it."""
        share = self._residents if resident else self._strangers
        limit = self._limit(resident)
        while len(share) >= limit:
            if not self._evict(share):
                self.troubles.report(Trouble.REFUSED, client=client)
                return False
        share.idle[guest] = self._clock()
        self._share_of[guest] = share
        self._streaks[guest] = 0
        return True

    def began(self, guest: Guest) -> None:
        """The guest's request is complete."""
        share = self._share_of.get(guest)
        if share is not None:
            since = share.idle.pop(guest, None)
            if since is not None and self._clock() - since >= _PAUSE_SECONDS:
                self._streaks[guest] = 0
            share.busy.add(guest)

    async def turn(self, guest: Guest) -> None:
        """Until its answer may be made: at once, but for a stranger who asks without a pause."""
        if self._share_of.get(guest) is self._strangers and self._streaks[guest]:
            async with self._one_by_one:
                await asyncio.sleep(_TURN_SECONDS)

    def ended(self, guest: Guest) -> None:
        """It is idle again, from now on; a client that does not read its answer counts as idle, too."""
        share = self._share_of.get(guest)
        if share is not None:
            share.busy.discard(guest)
            share.idle[guest] = self._clock()
            self._streaks[guest] += 1

    def unread(self, guest: Guest, size: int) -> None:
        """So many bytes of its answer wait for it to read; where all take too much memory, the oldest makes room."""
        share = self._share_of.get(guest)
        if share is None:
            return
        share.unread.pop(guest, None)
        if size:
            share.unread[guest] = size
        while sum(share.unread.values()) > self._most_unread and len(share.unread) > 1:
            self._dismiss(next(iter(share.unread)))

    def left(self, guest: Guest) -> None:
        """The connection is closed."""
        self._leaving.discard(guest)
        self._forget(guest)
        while self._waiting_for_room and not self.crowded:
            self._waiting_for_room.popleft()()

    def when_less_crowded(self, go_on: Callable[[], None]) -> None:
        """Have this called later; in turn, or those who come to one port would keep others from the next."""
        self._waiting_for_room.append(go_on)

    def make_room(self) -> None:
        """Close some connections of strangers: descriptors are lacking."""
        while not self.crowded and self._evict(self._strangers):
            pass

    def _evict(self, share: _Share) -> bool:
        """Close one connection; False when all are busy with their first answers."""
        guest = self._next_to_go(share)
        if guest is None:
            return False
        self._dismiss(guest)
        return True

    def _dismiss(self, guest: Guest) -> None:
        self._forget(guest)
        self._leaving.add(guest)
        self.troubles.report(Trouble.EVICTED)
        guest.drop()

    def _next_to_go(self, share: _Share) -> Guest | None:
        """Who has just come and is not answered yet goes last: else those who come back at once would turn each other out."""
        greediest = max((*share.idle, *share.busy), key=self._streaks.__getitem__, default=None)
        if greediest is None:
            return None
        longest_idle = next(iter(share.idle), None)
        lingers = longest_idle is not None and self._clock() - share.idle[longest_idle] >= _PAUSE_SECONDS
        streak = self._streaks[greediest]
        return greediest if streak >= _GREEDY or (streak and not lingers) else longest_idle

    @property
    def crowded(self) -> bool:
        """So many are about to be closed that nobody new should be let in before."""
        return len(self._leaving) >= _MOST_LEAVING

    def _forget(self, guest: Guest) -> None:
        share = self._share_of.pop(guest, None)
        if share is not None:
            share.idle.pop(guest, None)
            share.busy.discard(guest)
            share.unread.pop(guest, None)
            del self._streaks[guest]

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
    """As many as there may be, if not even one is left for counting."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return descriptor_limit()
