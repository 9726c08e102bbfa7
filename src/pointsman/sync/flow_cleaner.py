"""Deletes stale flows after syncs, outside of their path; stale_flows.py decides which ones those are."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.conntrack import ConntrackTable, FlowsLeft
from pointsman.kernel.tracked_flows import Flow
from pointsman.model.addresses import Family, is_link_local
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import PlanChange
from pointsman.sync.stale_flows import FlowCheck, PendingCheck, extend_check

CLEAN_TIMEOUT: Final = timedelta(seconds=30)
SECOND_CHECK_DELAY: Final = timedelta(seconds=2)
"""When to check again: a packet that met the old rules is listed only once it has left this node or been delivered."""

_log = get_log(__name__)

_Key = tuple[ServicePortName, float]
"""A service port and when its flows are due for a second check; 0 for the first one, which is due at once."""
_FIRST_CHECK: Final = 0.0


class CleanReport(msgspec.Struct, frozen=True):
    """Result of one run; `problem` is empty after success."""

    deleted: int = 0
    seconds: float = 0.0
    problem: str = ""
    unfinished: bool = False
    """The same checks are to be tried again; another attempt would not solve every problem."""
    checked: int = 0
    """Number of service ports whose flows were checked."""


class StaleFlowCleaner:
    """Deletes stale flows of one IP family after syncs.

    `add` only records what to check; `run` does the work and belongs on a thread of its own. A run that fails or passes
    its deadline deletes nothing more and keeps its checks for the next one.
    """

    def __init__(
        self,
        family: Family,
        metrics: Metrics,
        *,
        open_table: Callable[[Family], ConntrackTable] = ConntrackTable,
        timeout: timedelta = CLEAN_TIMEOUT,
        second_check_delay: timedelta = SECOND_CHECK_DELAY,
        monotonic: Callable[[], float] = time.monotonic,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """A run in progress ends as soon as `is_stopping` returns True."""
        self._family, self._open_table = family, open_table
        self._metrics = metrics
        self._timeout, self._monotonic = timeout.total_seconds(), monotonic
        self._is_stopping = is_stopping
        self.second_check_delay = second_check_delay.total_seconds()
        self._lock = threading.Lock()
        self._plans: dict[ServicePortName, ServicePlan] = {}
        self._pending: dict[_Key, PendingCheck] = {}
        self._context = NodeContext(family, "")
        self._own_addresses: tuple[bytes, ...] = ()

    @property
    def waiting(self) -> int:
        """Number of service ports whose flows have not been checked yet."""
        return sum(due == _FIRST_CHECK for _, due in self._pending)

    @property
    def has_second_checks(self) -> bool:
        """Whether flows are to be checked again, `second_check_delay` seconds after the first check."""
        return any(due != _FIRST_CHECK for _, due in self._pending)

    def add(self, changes: Mapping[ServicePortName, PlanChange], context: NodeContext) -> bool:
        """Record the changes of a successful sync; return whether `run` has something to do."""
        with self._lock:
            self._context = context
            for name, change in changes.items():
                if change.new is None:
                    self._plans.pop(name, None)
                else:
                    self._plans[name] = change.new
            return self._record(changes.items())

    def add_everything(self) -> bool:
        """Record every service port; return whether `run` has something to do.

        For times after which other rules may have decided about packets: those of this mode were removed externally for a
        while, or those of another mode existed beside them.
        """
        with self._lock:
            return self._record((name, PlanChange(None, plan)) for name, plan in self._plans.items())

    def set_addresses(self, addresses: tuple[bytes, ...]) -> bool:
        """Replace the addresses of the node; return whether `run` has something to do.

        Packets sent to a new address before this node had it went elsewhere untranslated, also to the number of a node port.
        """
        with self._lock:
            gained = set(addresses) - set(self._own_addresses)
            self._own_addresses = addresses
            if all(is_link_local(address) for address in gained):
                return self._record(())
            node_ports = [(name, plan) for name, plan in self._plans.items() if plan.port.node_port]
            return self._record((name, PlanChange(None, plan)) for name, plan in node_ports)

    def run(self) -> CleanReport:
        """Check what was recorded; never raises."""
        with self._lock:
            pending = dict(self._pending)
        if not pending:
            return CleanReport()
        started = self._monotonic()
        deleted, problem, unfinished = 0, "", False
        try:
            deleted = self._clean(started + self._timeout)
        except FlowsLeft as left:
            deleted, problem, unfinished = left.deleted, str(left), left.errno != errno.EBUSY
        except NotSupported as error:
            problem = f"{error}; UDP clients of removed endpoints will not be moved"
            self._discard(pending)
        except KernelError as error:
            problem, unfinished = str(error), True
        except Exception as error:  # noqa: BLE001 a bug in one run must not end the cleaning for good
            problem = f"internal error: {error!r}"
            self._discard(pending)
        if not unfinished:
            self._finish(pending, started)
        seconds = self._monotonic() - started
        family = self._family.value
        self._metrics.conntrack.seconds.labels(ip_family=family).observe(seconds)
        self._metrics.conntrack.deleted.labels(ip_family=family).inc(deleted)
        if deleted:
            _log.info("Deleted stale flows", v=2, family=family, flows=deleted, seconds=round(seconds, 3))
        return CleanReport(deleted, seconds, problem, unfinished, checked=len(pending))

    def _record(self, changes: Iterable[tuple[ServicePortName, PlanChange]]) -> bool:
        for name, change in changes:
            key = (name, _FIRST_CHECK)
            check = extend_check(self._pending.pop(key, None), change)
            if check is not None:
                self._pending[key] = check
        return any(due == _FIRST_CHECK for _, due in self._pending)

    def _build_check(self) -> FlowCheck:
        with self._lock:
            pending = [(name, check) for (name, _), check in self._pending.items()]
            plans, context, addresses = dict(self._plans), self._context, self._own_addresses
        return FlowCheck(pending, plans, context, addresses)

    def _clean(self, deadline: float) -> int:
        def is_expired() -> bool:
            return self._is_stopping() or self._monotonic() > deadline

        with self._open_table(self._family) as table:
            candidates = self._list(table, self._build_check(), is_expired)
            # An endpoint may have come back while flows were listed.
            stale = self._build_check().find_stale(candidates) if candidates else []
            if not stale:
                return 0
            handshakes = [flow for flow in stale if _is_handshake(flow)]
            others = [flow for flow in stale if not _is_handshake(flow)]
            return table.delete([*table.filter_unreplied(handshakes), *others], is_expired)

    def _list(
        self, table: ConntrackTable, check: FlowCheck, is_expired: Callable[[], bool]
    ) -> dict[Flow, None]:
        found: dict[Flow, None] = {}
        queries, exact = check.build_queries(), True
        while queries:
            query = queries.pop(0)

            def is_suspect(
                to: bytes, port: int, by: bytes, by_port: int, protocol: int = query.protocol
            ) -> bool:
                return check.is_stale(protocol, (to, port), (by, by_port))

            found |= dict.fromkeys(table.list_flows(query, is_suspect, is_expired))
            if exact and queries and not table.selects:
                queries, exact = check.build_queries(max_exact=0), False
        return found

    def _finish(self, pending: Mapping[_Key, PendingCheck], started: float) -> None:
        """Replace first checks by second ones and remove those that were due, unless they changed meanwhile."""
        with self._lock:
            for key, check in pending.items():
                name, due = key
                if due > started or self._pending.get(key) is not check:
                    continue
                del self._pending[key]
                if due == _FIRST_CHECK and check.frontends:
                    self._pending[name, started + self.second_check_delay] = check.for_second_check()

    def _discard(self, pending: Mapping[_Key, PendingCheck]) -> None:
        with self._lock:
            for key, check in pending.items():
                if self._pending.get(key) is check:
                    del self._pending[key]


def _is_handshake(flow: Flow) -> bool:
    return flow.protocol == Protocol.TCP.value and not flow.translated
