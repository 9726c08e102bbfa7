"""Is the proxy keeping up, and should load balancers send traffic to this node? State and answers, no I/O.

As in kube-proxy, a family is unhealthy when a change has been waiting for two sync periods, whether or not a sync
ever succeeded before. Ours is also unhealthy when its worker thread has been busy with one call for that long. /livez answers
that: a restart may help. /healthz also says whether the node or this process is on its way out, and whether objects the
first sync needs have not arrived after two sync periods: a restart would not help then, but this node serves nobody yet.
Ages are taken from a monotonic clock, so a jump of the wall clock affects only the times that are printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from pointsman.model.addresses import Family
from pointsman.model.objects import AUTOSCALER_TAINT, Node
from pointsman.serve.messages import Response, reply

Nanoseconds = int
Clock = Callable[[], Nanoseconds]

_SECOND = 1_000_000_000
_NEVER = "0001-01-01T00:00:00Z"


def rfc3339_nano(moment: Nanoseconds | None) -> str:
    """A Unix time in UTC as Go prints it in JSON: no trailing zeros, the zero time for None."""
    if moment is None:
        return _NEVER
    seconds, fraction = divmod(moment, _SECOND)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    digits = f"{fraction:09d}".rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def node_eligible(node: Node | None) -> bool:
    """False when load balancers should forget this node: gone, being deleted, or about to be scaled away."""
    if node is None or node.metadata.deletion_timestamp:
        return False
    return all(taint.key != AUTOSCALER_TAINT for taint in node.spec.taints or ())


class FamilyHealth(msgspec.Struct, frozen=True):
    """One IP family: Unix time of its last successful sync, and what keeps it from keeping up."""

    last_updated: Nanoseconds | None
    reason: str = ""
    """Empty when it keeps up."""

    @property
    def healthy(self) -> bool:
        return not self.reason


class Health(msgspec.Struct, frozen=True):
    """The proxy at one moment."""

    now: Nanoseconds
    last_updated: Nanoseconds | None
    healthy: bool
    status: Mapping[Family, FamilyHealth]
    waiting_for: str = ""
    """What the first sync has been waiting for too long; empty when it is not."""
    leaving: bool = False
    """The process was told to end and keeps syncing until load balancers have stopped choosing it."""

    @property
    def invites_traffic(self) -> bool:
        """Whether load balancers may choose this node, as far as the process knows."""
        return self.healthy and not self.leaving


class ProxyHealth:
    """Collects what the sync loops report; lives in the event loop, as they and the servers do.

    `busy` and `idle` alone are called on worker threads: a thread that does not come back cannot be noticed by what it sends.
    """

    def __init__(
        self,
        sync_period_ns: Nanoseconds,
        *,
        waiting_for: Callable[[], str] = str,
        wall: Clock = time.time_ns,
        monotonic: Clock = time.monotonic_ns,
    ) -> None:
        """`waiting_for` says what the first sync still needs, in words; empty when nothing."""
        self._timeout = 2 * sync_period_ns
        self._waiting_for = waiting_for
        self._wall, self._monotonic = wall, monotonic
        self._started = monotonic()
        self._oldest_queued: dict[Family, Nanoseconds] = {}
        self._busy_since: dict[Family, Nanoseconds] = {}
        self._updated: dict[Family, Nanoseconds] = {}
        self._node: Node | None = None
        self.leaving = False
        """Load balancers are turned away because the process was told to end."""

    def set_sync_period(self, sync_period_ns: Nanoseconds) -> None:
        """Follow a change of the configuration."""
        self._timeout = 2 * sync_period_ns

    def queued(self, family: Family) -> None:
        """A change waits to be written; only the oldest one since the last success counts."""
        self._oldest_queued.setdefault(family, self._monotonic())

    def updated(self, family: Family) -> None:
        """A sync succeeded: nothing waits any more."""
        self._oldest_queued.pop(family, None)
        self._updated[family] = self._wall()

    def busy(self, family: Family) -> None:
        """The family's worker thread begins a call. Called there, as `idle` is; each is one step on a dictionary."""
        self._busy_since[family] = self._monotonic()

    def idle(self, family: Family) -> None:
        """The worker thread came back."""
        self._busy_since.pop(family, None)

    def node_changed(self, node: Node | None) -> None:
        """The own Node as last seen; None when it is deleted or not known yet."""
        self._node = node

    @property
    def eligible(self) -> bool:
        """Whether load balancers may choose this node, as far as its Node object tells."""
        return node_eligible(self._node)

    def leave(self) -> None:
        """Turn load balancers away from now on; the rules go on being kept up to date."""
        self.leaving = True

    def health(self) -> Health:
        ticks = self._monotonic()
        troubles = {family: self._trouble(family, ticks) for family in Family}
        status = {
            family: FamilyHealth(self._updated.get(family), trouble)
            for family, trouble in troubles.items()
            if family in self._updated or trouble
        }
        late = ticks - self._started >= self._timeout
        return Health(
            now=self._wall(),
            last_updated=max(self._updated.values(), default=None),
            healthy=not any(troubles.values()),
            status=status,
            waiting_for=self._waiting_for() if late else "",
            leaving=self.leaving,
        )

    def _trouble(self, family: Family, ticks: Nanoseconds) -> str:
        queued, busy = self._oldest_queued.get(family, ticks), self._busy_since.get(family, ticks)
        if ticks - busy >= self._timeout:
            return f"the worker thread has not come back for {(ticks - busy) // _SECOND} s"
        if ticks - queued >= self._timeout:
            return f"no sync has succeeded for {(ticks - queued) // _SECOND} s"
        return ""

    def healthz(self) -> Response:
        """For load balancers: unhealthy also when node or process are leaving, or nobody said what to serve."""
        health, eligible = self.health(), self.eligible
        healthy = health.healthy and not health.waiting_for
        return self._answer(health, healthy and eligible and not health.leaving, healthy, eligible)

    def livez(self) -> Response:
        """For restarts: the state of the proxy alone."""
        health = self.health()
        return self._answer(health, health.healthy, health.healthy, None)

    def _answer(self, health: Health, good: bool, healthy: bool, eligible: bool | None) -> Response:
        # Old clients read lastUpdated as "the loop ran lately": a good answer says now, as kube-proxy's does.
        document: dict[str, object] = {
            "lastUpdated": rfc3339_nano(self._wall() if good else health.last_updated),
            "currentTime": rfc3339_nano(health.now),
        }
        if eligible is not None:
            document["nodeEligible"] = eligible
        document["healthy"] = healthy
        if health.status:
            document["status"] = {
                family.value: {
                    "lastUpdated": rfc3339_nano(entry.last_updated),
                    "healthy": entry.healthy,
                    **({"reason": entry.reason} if entry.reason else {}),
                }
                for family, entry in health.status.items()
            }
        if health.waiting_for:
            document["waitingFor"] = health.waiting_for
        if health.leaving:
            document["leaving"] = True
        return reply(msgspec.json.encode(document), "application/json", 200 if good else 503)
