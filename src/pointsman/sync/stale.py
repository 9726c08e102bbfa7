"""Flows that must not live on: UDP and SCTP traffic still sent to endpoints that are gone.

A tracked flow keeps its first choice of endpoint for as long as packets come, and a UDP client that never changes its
source port would talk to a dead pod for ever. After a sync succeeded, outside of its path, the flows of the service
ports that changed are looked up and exactly the stale ones deleted:

- addressed to a frontend of ours, and answered by an endpoint that does not serve any more (a terminating one that
  still serves keeps its flows, whatever the traffic policy says now);
- addressed to a frontend that had no endpoint when the flow began, so it was never translated, and has one now;
- addressed to a frontend that is gone, and translated to one of the endpoints it had.

Flows of service ports that did not change, TCP, and flows to a node port's number on addresses of other machines
are never touched. What to delete is decided by pure functions; `StaleFlowCleaner` does the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.conntrack import ConntrackTable, DeadlinePassed, Flow, FlowQuery
from pointsman.model.addresses import Family, is_loopback
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import PlanChange

DEADLINE: Final = timedelta(seconds=30)
MAX_EXACT_QUERIES: Final = 8
"""Up to so many ports are looked up one by one; beyond, one walk over all flows of the protocol is cheaper."""

_PROTOCOLS: Final = frozenset((Protocol.UDP, Protocol.SCTP))
_ANYWHERE: Final = b""

_log = get_log(__name__)

Backend = tuple[bytes, int]
FrontendKey = tuple[int, bytes, int]
"""Protocol number, address and port packets are sent to; the address is empty for a node port."""


class Expectation(msgspec.Struct, frozen=True, gc=False):
    """Who may answer at a frontend. For a removed frontend: who answered there before and may not any more."""

    serving: frozenset[Backend]
    removed: bool = False

    def refutes(self, destination: Backend, answering: Backend) -> bool:
        if answering in self.serving:
            return self.removed
        return not self.removed and (answering != destination or bool(self.serving))


class Checklist(msgspec.Struct, frozen=True):
    """The frontends whose flows are to be checked."""

    frontends: Mapping[FrontendKey, Expectation]
    node_addresses: frozenset[bytes] = frozenset()
    """Where node ports answer, loopback apart."""
    loopback: bool = False

    def refutes(self, protocol: int, destination: Backend, answering: Backend) -> bool:
        """Whether a flow to this destination must not go on being answered from there."""
        address, port = destination
        found = self.frontends.get((protocol, address, port))
        loopback = self.loopback and len(address) == 4 and is_loopback(address)
        if found is None and (loopback or address in self.node_addresses):
            found = self.frontends.get((protocol, _ANYWHERE, port))
        return found is not None and found.refutes(destination, answering)

    def queries(self) -> list[FlowQuery]:
        """What to ask the kernel for."""
        by_port: dict[tuple[int, int], set[bytes]] = {}
        for protocol, address, port in self.frontends:
            by_port.setdefault((protocol, port), set()).add(address)
        if len(by_port) > MAX_EXACT_QUERIES:
            return [FlowQuery(number) for number in sorted({protocol for protocol, _ in by_port})]
        return [
            FlowQuery(protocol, (addresses.pop() or None) if len(addresses) == 1 else None, port)
            for (protocol, port), addresses in by_port.items()
        ]


class Unsettled(msgspec.Struct, frozen=True, gc=False):
    """One service port whose flows are still to be checked: what it was since the last check, what it is now."""

    frontends: frozenset[FrontendKey]
    backends: frozenset[Backend]
    new: ServicePlan | None


def frontends_of(plan: ServicePlan | None) -> frozenset[FrontendKey]:
    if plan is None:
        return frozenset()
    number = plan.port.protocol.value
    return frozenset((number, entry.address, entry.port) for entry in plan.frontends)


def serving_of(plan: ServicePlan | None) -> frozenset[Backend]:
    """Endpoints whose flows may live on, wherever they are and whatever the policy prefers."""
    if plan is None:
        return frozenset()
    return frozenset(
        (entry.address, entry.port) for entry in plan.all_endpoints if entry.ready or entry.serving
    )


def may_leave_stale_flows(change: PlanChange) -> bool:
    """False for changes that cannot: other protocols, endpoints only added to others, policies, affinity."""
    plan = change.new or change.old
    if plan is None or plan.port.protocol not in _PROTOCOLS:
        return False
    if frontends_of(change.old) != frontends_of(change.new):
        return True
    before, now = serving_of(change.old), serving_of(change.new)
    return bool(before - now) or (not before and bool(now))


def unsettled_after(earlier: Unsettled | None, change: PlanChange) -> Unsettled:
    """What is to be checked, given what was still to be checked before this change."""
    frontends, backends = frontends_of(change.old), serving_of(change.old)
    if earlier is not None:
        frontends, backends = frontends | earlier.frontends, backends | earlier.backends
    return Unsettled(frontends, backends, change.new)


def checklist_of(unsettled: Iterable[Unsettled], context: NodeContext) -> Checklist:
    """Present frontends win over removed ones: an address may have passed to another service port."""
    entries = list(unsettled)
    frontends: dict[FrontendKey, Expectation] = {}
    for entry in entries:
        for key in entry.frontends - frontends_of(entry.new):
            frontends[key] = Expectation(entry.backends, removed=True)
    for entry in entries:
        expectation = Expectation(serving_of(entry.new))
        frontends |= dict.fromkeys(frontends_of(entry.new), expectation)
    selected = context.node_port_addresses
    everywhere = (*context.local_addresses, *context.node_ips)
    return Checklist(
        frontends, frozenset(everywhere if selected.match_all else selected.addresses), selected.loopback
    )


def stale_flows(flows: Iterable[Flow], checklist: Checklist) -> list[Flow]:
    """The flows to delete."""
    return [
        flow
        for flow in flows
        if checklist.refutes(
            flow.protocol,
            (flow.destination, flow.destination_port),
            (flow.reply_source, flow.reply_source_port),
        )
    ]


class CleanReport(msgspec.Struct, frozen=True):
    """What one run did; `problem` is empty when everything was checked."""

    deleted: int = 0
    seconds: float = 0.0
    problem: str = ""


class StaleFlowCleaner:
    """Deletes stale flows of one IP family after syncs.

    `add` is called by the sync thread and only takes notes; `run` does the work and belongs on a thread of its own.
    A run that fails or passes its deadline keeps its notes for the next one.
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
        self._deadline, self._monotonic = deadline.total_seconds(), monotonic
        self._lock = threading.Lock()
        self._unsettled: dict[ServicePortName, Unsettled] = {}
        self._context: NodeContext | None = None
        self._checklist: Checklist | None = None

    @property
    def waiting(self) -> int:
        """Service ports whose flows are still to be checked."""
        return len(self._unsettled)

    def add(self, changes: Mapping[ServicePortName, PlanChange], context: NodeContext) -> bool:
        """Note the changes of a successful sync; True when `run` has something to do.

        After a restart the first sync brings every service port as new, so all their flows are checked once.
        """
        with self._lock:
            self._context = context
            self._checklist = None
            for name, change in changes.items():
                earlier = self._unsettled.get(name)
                if earlier is not None or may_leave_stale_flows(change):
                    self._unsettled[name] = unsettled_after(earlier, change)
            return bool(self._unsettled)

    def run(self) -> CleanReport:
        """Check what was noted; never raises."""
        noted, checklist = self._snapshot()
        if not checklist.frontends:
            self._settle(noted)
            return CleanReport()
        started = self._monotonic()
        deleted, problem = 0, ""
        try:
            deleted = self._clean(checklist, lambda: self._monotonic() - started > self._deadline)
        except DeadlinePassed as passed:
            deleted, problem = passed.deleted, str(passed)
        except NotSupported as error:
            problem = f"{error}; UDP clients of vanished endpoints will not be moved"
            self._settle(noted)
        except KernelError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 a bug met here must not end the cleaning for good
            problem = f"internal error: {error!r}"
            self._settle(noted)
        else:
            self._settle(noted)
        seconds = self._monotonic() - started
        self._metrics.conntrack_seconds.labels(ip_family=self._family.value).observe(seconds)
        self._metrics.conntrack_deleted.labels(ip_family=self._family.value).inc(deleted)
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

    def _clean(self, checklist: Checklist, expired: Callable[[], bool]) -> int:
        candidates: list[Flow] = []
        with self._open_table(self._family) as table:
            for query in checklist.queries():

                def suspect(
                    to: bytes, port: int, by: bytes, by_port: int, number: int = query.protocol
                ) -> bool:
                    return checklist.refutes(number, (to, port), (by, by_port))

                candidates += table.flows(query, suspect, expired)
            _, newest = self._snapshot()
            return table.delete(list(dict.fromkeys(stale_flows(candidates, newest))), expired)

    def _snapshot(self) -> tuple[dict[ServicePortName, Unsettled], Checklist]:
        with self._lock:
            noted = dict(self._unsettled)
            if self._context is None:
                return noted, Checklist({})
            if self._checklist is None:
                self._checklist = checklist_of(noted.values(), self._context)
            return noted, self._checklist

    def _settle(self, noted: Mapping[ServicePortName, Unsettled]) -> None:
        """Forget what was checked, unless it changed again meanwhile."""
        with self._lock:
            for name, entry in noted.items():
                if self._unsettled.get(name) is entry:
                    del self._unsettled[name]
            self._checklist = None
