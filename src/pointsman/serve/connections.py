"""Limits on the connections of all served ports together.

The ports are open to the network without authentication, as kube-proxy's are. Connections of remote clients must not keep
probes out, however many there are and whatever they do:

* A new connection replaces the one that has been idle for longest; one whose request is being answered is kept.
* Clients on this node (the kubelet, scrapers, a shell) have a limit of their own, which remote clients cannot use up.
* Remote clients that send requests without a pause are answered one after the other, at a fixed rate for all of them together.
* Responses that wait to be read have a limit in bytes; beyond it the oldest is given up.
"""

from __future__ import annotations

import asyncio
import enum
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from pointsman.obs.log import get_log

MAX_REMOTE: Final = 512
MAX_LOCAL: Final = 128
IDLE_TIMEOUT_SECONDS: Final = 30.0
MAX_UNSENT_BYTES: Final = 32 << 20
"""Of remote clients and of clients on this node each."""
RESERVED_DESCRIPTORS: Final = 32
"""Listening sockets leave these to the rest of the process."""
LOG_INTERVAL_SECONDS: Final = 60.0

_MIN_LIMIT: Final = 4
_REMOTE_PART, _LOCAL_PART = 3, 10
"""A third of the descriptors may be connections of remote clients, a tenth those of clients on this node."""
_MIN_PAUSE_SECONDS: Final = 1.0
"""Probes and scrapers wait for longer before the next request on the same connection."""
_THROTTLE_SECONDS: Final = 0.002

_log = get_log(__name__)


class ServingError(enum.Enum):
    """What can go wrong at a served port; the value is the label of its metric."""

    EVICTED = "evicted"
    REFUSED = "refused"
    MALFORMED = "malformed"
    ACCEPT_FAILED = "accept_failed"
    HANDLER_FAILED = "handler_failed"


_MESSAGES: Final = {
    ServingError.EVICTED: "Too many connections or unread responses, closing the oldest",
    ServingError.REFUSED: "Too many busy connections, refusing new ones",
    ServingError.MALFORMED: "Malformed requests",
    ServingError.ACCEPT_FAILED: "Cannot accept connections",
    ServingError.HANDLER_FAILED: "Internal error while answering a request",
}


class ErrorLog:
    """Errors at the served ports: each is counted, and each kind logged once a minute at most."""

    def __init__(
        self,
        count: Callable[[ServingError], None] = lambda _kind: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._clock = count, clock
        self._unlogged: Counter[ServingError] = Counter()
        self._logged_at: dict[ServingError, float] = {}

    def report(self, kind: ServingError, error: BaseException | None = None, **details: object) -> None:
        self._count(kind)
        self._unlogged[kind] += 1
        now = self._clock()
        if now - self._logged_at.get(kind, float("-inf")) < LOG_INTERVAL_SECONDS:
            return
        self._logged_at[kind] = now
        details = {"times": self._unlogged.pop(kind), **details}
        if kind is ServingError.HANDLER_FAILED and error is not None:
            _log.exception(_MESSAGES[kind], err=error, **details)
        else:
            _log.warning(_MESSAGES[kind], **({"err": error} if error is not None else {}), **details)


class Closable(Protocol):
    """An open connection."""

    def abort(self) -> None:
        """Close it at once."""


class _Group:
    """Connections that share a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.idle: dict[Closable, float] = {}
        """Since when; the longest idle comes first."""
        self.busy: set[Closable] = set()
        self.unsent: dict[Closable, int] = {}
        """Bytes of the response that the client has not read; the oldest response comes first."""

    def __len__(self) -> int:
        return len(self.idle) + len(self.busy)


class Connections:
    """Open connections of every served port; used from the event loop only."""

    def __init__(
        self,
        errors: ErrorLog | None = None,
        *,
        max_remote: int = MAX_REMOTE,
        max_local: int = MAX_LOCAL,
        idle_seconds: float = IDLE_TIMEOUT_SECONDS,
        max_unsent_bytes: int = MAX_UNSENT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Where descriptors are scarce, the limits are lower, so that watches can always be opened again."""
        self.errors = ErrorLog() if errors is None else errors
        self.idle_seconds = idle_seconds
        self._max_unsent_bytes = max_unsent_bytes
        self._clock = clock
        descriptors = read_descriptor_limit()
        self._remote = _Group(min(max_remote, max(_MIN_LIMIT, descriptors // _REMOTE_PART)))
        self._local = _Group(min(max_local, max(_MIN_LIMIT, descriptors // _LOCAL_PART)))
        self._group_of: dict[Closable, _Group] = {}
        self._throttle = asyncio.Lock()

    def admit(self, connection: Closable, *, is_local: bool, client: str = "") -> bool:
        """Count a new connection, closing another if need be; False when all others are busy."""
        group = self._local if is_local else self._remote
        if len(group) >= group.limit and not self._evict(group):
            self.errors.report(ServingError.REFUSED, client=client)
            return False
        group.idle[connection] = self._clock()
        self._group_of[connection] = group
        return True

    def remove(self, connection: Closable) -> None:
        """Forget a connection that is closed, or about to be."""
        group = self._group_of.pop(connection, None)
        if group is not None:
            group.idle.pop(connection, None)
            group.busy.discard(connection)
            group.unsent.pop(connection, None)

    async def throttle(self, connection: Closable, answered_at: float) -> None:
        """Delay a request of a remote client that made no pause after the response before."""
        if (
            self._group_of.get(connection) is self._remote
            and self._clock() - answered_at < _MIN_PAUSE_SECONDS
        ):
            async with self._throttle:
                await asyncio.sleep(_THROTTLE_SECONDS)

    def mark_busy(self, connection: Closable) -> None:
        """Keep the connection: its request is being answered."""
        group = self._group_of.get(connection)
        if group is not None:
            group.idle.pop(connection, None)
            group.busy.add(connection)

    def mark_idle(self, connection: Closable) -> float:
        """Count the connection as idle from now on, whether or not its client has read the response; return the time."""
        group, now = self._group_of.get(connection), self._clock()
        if group is not None:
            group.busy.discard(connection)
            group.idle[connection] = now
        return now

    def set_unsent(self, connection: Closable, size: int) -> None:
        """Note how many bytes of a response are to be sent; closes connections with older ones above the limit."""
        group = self._group_of.get(connection)
        if group is None:
            return
        group.unsent.pop(connection, None)
        if size:
            group.unsent[connection] = size
        while sum(group.unsent.values()) > self._max_unsent_bytes and len(group.unsent) > 1:
            self._close(next(iter(group.unsent)))

    def evict_remote(self) -> None:
        """Close the longest idle connection of a remote client, when descriptors are short."""
        self._evict(self._remote)

    def _evict(self, group: _Group) -> bool:
        longest_idle = next(iter(group.idle), None)
        if longest_idle is not None:
            self._close(longest_idle)
        return longest_idle is not None

    def _close(self, connection: Closable) -> None:
        self.remove(connection)
        self.errors.report(ServingError.EVICTED)
        connection.abort()


def read_descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
