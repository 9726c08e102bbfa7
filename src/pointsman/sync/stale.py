"""Deletes stale flows after syncs, outside of their path; which ones those are is decided in flow_checklist.py."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.conntrack import ConntrackTable, DeadlinePassed, FlowsLeft
from pointsman.kernel.tracked_flows import Flow
from pointsman.model.addresses import Family, is_link_local
from pointsman.model.node_context import NodeContext, Situation
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.sync.flow_checklist import (
    Checklist,
    Unsettled,
    checklist_of,
    seen_again,
    stale_flows,
    unsettled_after,
)
from pointsman.sync.reconcile import PlanChange

DEADLINE: Final = timedelta(seconds=30)
SECOND_LOOK: Final = timedelta(seconds=2)
"""When to look again: a packet that met the old rules is listed only once it has left this node or been delivered."""

_log = get_log(__name__)


class CleanReport(msgspec.Struct, frozen=True):
    """What one run did; `problem` is empty when nothing was in its way."""

    deleted: int = 0
    seconds: float = 0.0
    problem: str = ""
    unfinished: bool = False
    """What was noted is to be tried again; there are also problems that another attempt would meet again."""
    checked: int = 0
    """Service ports whose flows were looked at."""


class _Notes(msgspec.Struct, frozen=True):
    """What was noted up to now."""

    unsettled: Mapping[ServicePortName, Unsettled]
    again: Sequence[Unsettled]
    """Looked at once."""
    situation: Situation
    number: int
    """Grows with every addition."""

    def checklist(self) -> Checklist:
        return checklist_of((*self.again, *self.unsettled.values()), self.situation)


class _LookedAt(msgspec.Struct, frozen=True):
    """Notes that one run has settled, kept until another has begun late enough.

    Never mixed with later notes of the same service port: those of whoever got an address after them must not be forgotten
    earlier, or its flows would pass for those of the one who had it before.
    """

    noted: Mapping[ServicePortName, Unsettled]
    again_at: float


def _is_handshake(flow: Flow) -> bool:
    return flow.protocol == Protocol.TCP.value and not flow.translated


class StaleFlowCleaner:
    """Deletes stale flows of one IP family after syncs.

    `add` only takes notes; `run` does the work and belongs on a thread of its own. A run that fails or passes its
    deadline keeps its notes for the next one.
    """

    def __init__(
        self,
        family: Family,
        metrics: Metrics,
        *,
        open_table: Callable[[Family], ConntrackTable] = ConntrackTable,
        deadline: timedelta = DEADLINE,
        second_look: timedelta = SECOND_LOOK,
        monotonic: Callable[[], float] = time.monotonic,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """A run under way gives up as soon as `stopping` says so."""
        self._family, self._open_table = family, open_table
        self._metrics = metrics
        self._deleted = metrics.conntrack_deleted.labels(ip_family=family.value)
        self._deadline, self._monotonic = deadline.total_seconds(), monotonic
        self._stopping = stopping
        self.second_look = second_look.total_seconds()
        self._lock = threading.Lock()
        self._plans: dict[ServicePortName, ServicePlan] = {}
        self._unsettled: dict[ServicePortName, Unsettled] = {}
        self._looked_at: list[_LookedAt] = []
        self._situation = Situation(NodeContext(family, ""))
        self._additions = 0

    @property
    def waiting(self) -> int:
        """Service ports whose flows are still to be checked."""
        return len(self._unsettled)

    @property
    def looks_again(self) -> bool:
        """Some flows are to be checked a second time, `second_look` seconds after the first."""
        return bool(self._looked_at)

    def add(self, changes: Mapping[ServicePortName, PlanChange], situation: Situation) -> bool:
        """Note what a successful sync changed; True when `run` has something to do."""
        with self._lock:
            self._situation = situation
            self._additions += 1
            for name, change in changes.items():
                self._note(name, change)
                if change.new is None:
                    self._plans.pop(name, None)
                else:
                    self._plans[name] = change.new
            return bool(self._unsettled)

    def add_everything(self) -> bool:
        """Note every service port; True when `run` has something to do.

        For times after which other rules than ours may have decided about packets: somebody took ours away until
        they came back, or those of another mode stood beside them.
        """
        with self._lock:
            self._additions += 1
            for name, plan in self._plans.items():
                self._note(name, PlanChange(None, plan))
            return bool(self._unsettled)

    def readdressed(self, situation: Situation) -> bool:
        """The node may have other addresses; True when `run` has something to do.

        What was sent to a new one before it came here went elsewhere untranslated, at the number of a node port, too.
        """
        with self._lock:
            gained = set(situation.own_addresses) - set(self._situation.own_addresses)
            self._situation = situation
            if not all(is_link_local(address) for address in gained):
                self._additions += 1
                for name, plan in self._plans.items():
                    if plan.port.node_port:
                        self._note(name, PlanChange(None, plan))
            return bool(self._unsettled)

    def run(self) -> CleanReport:
        """Check what was noted; never raises."""
        notes = self._notes()
        if not notes.unsettled and not notes.again:
            return CleanReport()
        started = self._monotonic()
        deleted, problem, unfinished = 0, "", False
        try:
            deleted = self._clean(
                notes, lambda: self._stopping() or self._monotonic() - started > self._deadline
            )
        except FlowsLeft as left:
            deleted, problem, unfinished = left.deleted, str(left), left.errno != errno.EBUSY
            if not unfinished:
                self._settle(notes, started)
        except NotSupported as error:
            problem = f"{error}; UDP clients of vanished endpoints will not be moved"
            self._settle(notes)
        except KernelError as error:
            problem, unfinished = str(error), True
        except Exception as error:  # noqa: BLE001 a bug met here must not end the cleaning for good
            problem = f"internal error: {error!r}"
            self._settle(notes)
        else:
            self._settle(notes, started)
        seconds = self._monotonic() - started
        self._metrics.conntrack_seconds.labels(ip_family=self._family.value).observe(seconds)
        self._deleted.inc(deleted)
        if deleted:
            _log.info(
                "Deleted stale flows",
                v=2,
                family=self._family.value,
                flows=deleted,
                seconds=round(seconds, 3),
            )
        return CleanReport(
            deleted, seconds, problem, unfinished, checked=len(notes.unsettled) + len(notes.again)
        )

    def _note(self, name: ServicePortName, change: PlanChange) -> None:
        noted = unsettled_after(self._unsettled.pop(name, None), change)
        if noted is not None:
            self._unsettled[name] = noted

    def _clean(self, notes: _Notes, expired: Callable[[], bool]) -> int:
        checklist = notes.checklist()
        candidates: dict[Flow, None] = {}
        late: DeadlinePassed | None = None
        with self._open_table(self._family) as table:
            try:
                self._look(table, checklist, candidates, expired)
            except DeadlinePassed as passed:
                late = passed
                candidates |= dict.fromkeys(passed.found)
        current = checklist if self._additions == notes.number else self._notes().checklist()
        stale = stale_flows(candidates, current)
        if late is None:
            return self._delete(stale, expired)
        try:
            deleted = self._delete(stale, self._stopping)
        except FlowsLeft as left:
            deleted = left.deleted
        raise DeadlinePassed(str(late), deleted)

    def _look(
        self,
        table: ConntrackTable,
        checklist: Checklist,
        found: dict[Flow, None],
        expired: Callable[[], bool],
    ) -> None:
        """Add to `found`, so that what was found in time is not lost."""
        queries, exact = checklist.queries(), True
        while queries:
            query = queries.pop(0)

            def suspect(to: bytes, port: int, by: bytes, by_port: int, number: int = query.protocol) -> bool:
                return checklist.refutes(number, (to, port), (by, by_port))

            found |= dict.fromkeys(table.flows(query, suspect, expired))
            if exact and queries and not table.selects:
                queries, exact = checklist.queries(most=0), False

    def _delete(self, stale: Sequence[Flow], expired: Callable[[], bool]) -> int:
        """By a socket of its own: a listing that took too long leaves answers unread."""
        if not stale:
            return 0
        handshakes = [flow for flow in stale if _is_handshake(flow)]
        others = [flow for flow in stale if not _is_handshake(flow)]
        with self._open_table(self._family) as table:
            return table.delete([*table.still_unreplied(handshakes), *others], expired)

    def _notes(self) -> _Notes:
        with self._lock:
            again = [
                seen_again(entry, self._plans.get(name))
                for batch in self._looked_at
                for name, entry in batch.noted.items()
            ]
            return _Notes(dict(self._unsettled), again, self._situation, self._additions)

    def _settle(self, notes: _Notes, looked_at: float | None = None) -> None:
        """Forget what was checked, unless it changed again meanwhile; with a time, only until the second look."""
        with self._lock:
            settled = {
                name: entry for name, entry in notes.unsettled.items() if self._unsettled.get(name) is entry
            }
            for name in settled:
                del self._unsettled[name]
            if looked_at is None:
                self._looked_at = []
                return
            self._looked_at = [batch for batch in self._looked_at if batch.again_at > looked_at]
            again = {name: entry for name, entry in settled.items() if entry.frontends}
            if again:
                self._looked_at.append(_LookedAt(again, looked_at + self.second_look))
