"""Deletes stale flows after syncs, outside of their path; which ones those are is decided in flow_checklist.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.conntrack import ConntrackTable, DeadlinePassed
from pointsman.kernel.tracked_flows import Flow
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext, Situation
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.sync.flow_checklist import Checklist, Unsettled, checklist_of, stale_flows, unsettled_after
from pointsman.sync.reconcile import PlanChange

DEADLINE: Final = timedelta(seconds=30)

_log = get_log(__name__)


class CleanReport(msgspec.Struct, frozen=True):
    """What one run did; `problem` is empty when everything was checked."""

    deleted: int = 0
    seconds: float = 0.0
    problem: str = ""


class _Notes(msgspec.Struct, frozen=True):
    """What was noted up to now."""

    unsettled: Mapping[ServicePortName, Unsettled]
    situation: Situation
    number: int
    """Grows with every addition."""

    def checklist(self) -> Checklist:
        return checklist_of(self.unsettled.values(), self.situation)


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
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._family, self._open_table = family, open_table
        self._metrics = metrics
        self._deleted = metrics.conntrack_deleted.labels(ip_family=family.value)
        self._deadline, self._monotonic = deadline.total_seconds(), monotonic
        self._lock = threading.Lock()
        self._plans: dict[ServicePortName, ServicePlan] = {}
        self._unsettled: dict[ServicePortName, Unsettled] = {}
        self._situation = Situation(NodeContext(family, ""))
        self._additions = 0

    @property
    def waiting(self) -> int:
        """Service ports whose flows are still to be checked."""
        return len(self._unsettled)

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

    def run(self) -> CleanReport:
        """Check what was noted; never raises."""
        notes = self._notes()
        if not notes.unsettled:
            return CleanReport()
        started = self._monotonic()
        deleted, problem = 0, ""
        try:
            deleted = self._clean(notes, lambda: self._monotonic() - started > self._deadline)
        except DeadlinePassed as passed:
            deleted, problem = passed.deleted, str(passed)
        except NotSupported as error:
            problem = f"{error}; UDP clients of vanished endpoints will not be moved"
            self._settle(notes)
        except KernelError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 a bug met here must not end the cleaning for good
            problem = f"internal error: {error!r}"
            self._settle(notes)
        else:
            self._settle(notes)
        seconds = self._monotonic() - started
        self._metrics.conntrack_seconds.labels(ip_family=self._family.value).observe(seconds)
        self._deleted.inc(deleted)
        if problem:
            _log.error("Stale flows could not be deleted", err=problem, family=self._family.value)
        elif deleted:
            _log.info(
                "Deleted stale flows",
                v=2,
                family=self._family.value,
                flows=deleted,
                seconds=round(seconds, 3),
            )
        return CleanReport(deleted, seconds, problem)

    def _note(self, name: ServicePortName, change: PlanChange) -> None:
        noted = unsettled_after(self._unsettled.get(name), change)
        if noted is not None:
            self._unsettled[name] = noted

    def _clean(self, notes: _Notes, expired: Callable[[], bool]) -> int:
        checklist = notes.checklist()
        candidates: list[Flow] = []
        with self._open_table(self._family) as table:
            for query in checklist.queries():

                def suspect(
                    to: bytes, port: int, by: bytes, by_port: int, number: int = query.protocol
                ) -> bool:
                    return checklist.refutes(number, (to, port), (by, by_port))

                candidates += table.flows(query, suspect, expired)
            newest = self._notes()
            current = checklist if newest.number == notes.number else newest.checklist()
            stale = stale_flows(dict.fromkeys(candidates), current)
            handshakes = [flow for flow in stale if _is_handshake(flow)]
            others = [flow for flow in stale if not _is_handshake(flow)]
            return table.delete([*table.still_unreplied(handshakes), *others], expired)

    def _notes(self) -> _Notes:
        with self._lock:
            return _Notes(dict(self._unsettled), self._situation, self._additions)

    def _settle(self, notes: _Notes) -> None:
        """Forget what was checked, unless it changed again meanwhile."""
        with self._lock:
            for name, entry in notes.unsettled.items():
                if self._unsettled.get(name) is entry:
                    del self._unsettled[name]
