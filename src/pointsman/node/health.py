"""Health of the proxy as sources of conditions: kube-proxy's own rules, and the results of the syncs.

As in kube-proxy, a family is unhealthy when a change has been pending for two sync periods, whether or not a sync ever
succeeded before. A family is also unhealthy when its worker thread has been busy with one call for that long. Both block liveness:
a restart may help. The eligibility of the Node, draining, and objects that the first sync still needs after two sync periods block
traffic only: a restart would not help. Ages are taken from a monotonic clock, so a jump of the wall clock does not matter.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pointsman.backends.contract import Difference
from pointsman.conditions import NODE_ELIGIBLE, RUNNING, STARTED, Blocks, Condition, sync_progress_type
from pointsman.explain.checks import is_same_host
from pointsman.model.addresses import Family
from pointsman.model.findings import Finding, Value
from pointsman.model.objects import AUTOSCALER_TAINT, Node
from pointsman.model.service import ServicePortName
from pointsman.node.start import StartGate
from pointsman.node.state import NodeState
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import SyncFailed, SyncOutcome
from pointsman.text import find_similar

Nanoseconds = int
Clock = Callable[[], Nanoseconds]

MAX_NAMED = 20
MAX_SIMILAR = 3
_SECOND = 1_000_000_000


def find_ineligibility(node: Node | None) -> str:
    """Return why load balancers should stop choosing this node, as a reason code; empty when they should not."""
    if node is None:
        return "NodeUnknown"
    if node.metadata.deletion_timestamp:
        return "NodeBeingDeleted"
    tainted = any(taint.key == AUTOSCALER_TAINT for taint in node.spec.taints or ())
    return "NodeBeingScaledDown" if tainted else ""


_INELIGIBILITY_TEXT = {
    "NodeUnknown": "the Node object does not exist or is not known yet",
    "NodeBeingDeleted": "the Node object is being deleted",
    "NodeBeingScaledDown": f"the Node has the taint {AUTOSCALER_TAINT}",
}


def find_unserved_families(unsupported: Mapping[Family, str], node: NodeState) -> Iterator[Condition]:
    """Name families that this machine cannot serve although the Node has addresses of them: their packets are lost."""
    for family, reason in unsupported.items():
        if node.facts.ips_of(family):
            yield Condition.false(f"Family{family.value}", "NotSupported", reason, blocks=Blocks.READINESS)


class ProxyHealth(SyncListener):
    """kube-proxy's health rules; lives in the event loop.

    `on_worker_busy` and `on_worker_idle` alone are called on worker threads: a thread that hangs cannot report it to
    the event loop. Each is one step on a dictionary.
    """

    def __init__(
        self,
        sync_period: float,
        gate: StartGate,
        *,
        wall: Clock = time.time_ns,
        monotonic: Clock = time.monotonic_ns,
    ) -> None:
        self.last_updated: dict[Family, Nanoseconds] = {}
        """Unix time of the last successful sync."""
        self.node: Node | None = None
        """The own Node as last seen; None when it is deleted or not known yet."""
        self.node_names: Sequence[str] = ()
        """Of Nodes that exist, while the own one does not."""
        self.is_draining = False
        """The process is to end and keeps syncing until load balancers have stopped choosing this node."""
        self.sync_period = sync_period
        self._gate = gate
        self._wall, self._monotonic = wall, monotonic
        self._started = monotonic()
        self._oldest_queued: dict[Family, Nanoseconds] = {}
        self._busy_since: dict[Family, Nanoseconds] = {}

    def on_queued(self, family: Family) -> None:
        self._oldest_queued.setdefault(family, self._monotonic())

    def on_synced(self, outcome: SyncOutcome) -> None:
        self._oldest_queued.pop(outcome.family, None)
        self.last_updated[outcome.family] = self._wall()

    def on_sync_failed(self, family: Family, _failure: SyncFailed, _retry_in: float) -> None:
        self.on_queued(family)

    def on_worker_busy(self, family: Family) -> None:
        """Note that the worker thread of the family begins a call."""
        self._busy_since[family] = self._monotonic()

    def on_worker_idle(self, family: Family) -> None:
        """Note that the worker thread finished its call."""
        self._busy_since.pop(family, None)

    @property
    def accepts_traffic(self) -> bool:
        """Health check node ports may send clients here."""
        return not self.is_draining and not any(self._find_delay(family)[0] for family in Family)

    def conditions(self) -> Iterator[Condition]:
        yield self._build_started_condition()
        for family in Family:
            type_ = sync_progress_type(family)
            reason, message = self._find_delay(family)
            if reason:
                yield Condition.false(type_, reason, message, blocks=Blocks.LIVENESS)
            elif family in self.last_updated:
                yield Condition.true(type_, Blocks.LIVENESS)
        ineligible = find_ineligibility(self.node)
        if ineligible == "NodeUnknown" and self._gate.has_listed(Node):
            yield self._build_missing_node_condition()
        elif ineligible:
            message = _INELIGIBILITY_TEXT[ineligible]
            yield Condition.false(NODE_ELIGIBLE, ineligible, message, blocks=Blocks.TRAFFIC)
        else:
            yield Condition.true(NODE_ELIGIBLE, Blocks.TRAFFIC)
        if self.is_draining:
            message = "the process is shutting down"
            yield Condition.false(RUNNING, "Draining", message, blocks=Blocks.TRAFFIC)
        else:
            yield Condition.true(RUNNING, Blocks.TRAFFIC)

    def _build_missing_node_condition(self) -> Condition:
        name = self._gate.node_name
        similar = [one for one in self.node_names if is_same_host(one, name)]
        similar = similar[:MAX_SIMILAR] or find_similar(name, self.node_names, MAX_SIMILAR)
        hint = f", did you mean {' or '.join(similar)}?" if similar else ""
        remedy = (
            "set --hostname-override (hostnameOverride) to the name of the Node that the kubelet registered"
        )
        message = f"there is no Node {name}{hint}"
        return Condition.false(NODE_ELIGIBLE, "NodeNotFound", message, remedy, blocks=Blocks.TRAFFIC)

    def _build_started_condition(self) -> Condition:
        missing = self._gate.waiting_for
        if not missing:
            return Condition.true(STARTED, Blocks.READINESS)
        is_late = self._monotonic() - self._started >= self._timeout
        blocks = Blocks.TRAFFIC if is_late else Blocks.READINESS
        return Condition.false(STARTED, "WaitingForObjects", f"waiting for {missing}", blocks=blocks)

    def _find_delay(self, family: Family) -> tuple[str, str]:
        """Return reason and message of a family that does not keep up; empty when it does."""
        now = self._monotonic()
        busy = now - self._busy_since.get(family, now)
        if busy >= self._timeout:
            return "WorkerHangs", f"the worker thread has not come back for {busy // _SECOND} s"
        pending = now - self._oldest_queued.get(family, now)
        if pending >= self._timeout:
            return "SyncOverdue", f"no sync has succeeded for {pending // _SECOND} s"
        return "", ""

    @property
    def _timeout(self) -> Nanoseconds:
        return int(2 * self.sync_period * _SECOND)


class SyncConditions(SyncListener):
    """Results of syncs and drift checks, per IP family. The reporter logs every failed sync and every drift."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._logged: dict[str, Condition] = {}
        """By type, like the others: what the reporter logs."""
        self._unlogged: dict[str, Condition] = {}
        self._from_backends: dict[Family, Sequence[Condition]] = {}
        for label in (family.value for family in families):
            ready = Blocks.READINESS
            _put(self._logged, Condition.unknown(f"Sync{label}", "NotSyncedYet", "no sync yet", blocks=ready))
            _put(
                self._logged,
                Condition.unknown(f"Rules{label}", "NotCheckedYet", "not checked yet", blocks=ready),
            )
            _put(self._logged, Condition.true(f"ServicePorts{label}", Blocks.SERVICES))
            _put(self._unlogged, Condition.true(f"RuleOwnership{label}"))
            _put(self._unlogged, Condition.true(f"UniqueAddresses{label}"))

    def conditions(self) -> Iterable[Condition]:
        return self._logged.values()

    def backend_conditions(self) -> Iterator[Condition]:
        """Yield what only the board logs."""
        yield from self._unlogged.values()
        for conditions in self._from_backends.values():
            yield from conditions

    def on_synced(self, outcome: SyncOutcome) -> None:
        label = outcome.family.value
        _put(self._logged, Condition.true(f"Sync{label}", Blocks.READINESS))
        _put(self._logged, _build_ports_condition(f"ServicePorts{label}", outcome.report.rejected))
        _put(self._unlogged, _build_addresses_condition(f"UniqueAddresses{label}", outcome.conflicts))
        self._from_backends[outcome.family] = outcome.report.conditions

    def on_sync_failed(self, family: Family, failure: SyncFailed, _retry_in: float) -> None:
        message = f"the last sync failed: {failure}"
        failed = Condition.false(f"Sync{family.value}", "SyncFailed", message, blocks=Blocks.READINESS)
        _put(self._logged, failed)

    def on_drift_check_passed(self, family: Family) -> None:
        _put(self._logged, Condition.true(f"Rules{family.value}", Blocks.READINESS))

    def on_drift(self, family: Family, drift: Difference, restored_in: float) -> None:
        self._set_rules_failed(family, "ModifiedExternally", f"modified externally: {drift}")
        if drift.other_proxy is not None and restored_in > 0:
            message = f"{drift.other_proxy.value} keeps rewriting our rules"
            _put(self._unlogged, Condition.false(f"RuleOwnership{family.value}", "OtherProxy", message))

    def on_drift_check_failed(self, family: Family, error: Exception) -> None:
        self._set_rules_failed(family, "Unreadable", f"the rules cannot be read: {error}")

    def on_conflict_ended(self, family: Family) -> None:
        _put(self._unlogged, Condition.true(f"RuleOwnership{family.value}"))

    def _set_rules_failed(self, family: Family, reason: str, message: str) -> None:
        failed = Condition.false(f"Rules{family.value}", reason, message, blocks=Blocks.READINESS)
        _put(self._logged, failed)


def _put(found: dict[str, Condition], condition: Condition) -> None:
    found[condition.type] = condition


def _build_ports_condition(type_: str, rejected: Mapping[ServicePortName, str]) -> Condition:
    if not rejected:
        return Condition.true(type_, Blocks.SERVICES)
    texts = (f"{name}: {reason}" for name, reason in rejected.items())
    message = f"the kernel rejected {len(rejected)} service ports: {join_first(texts, len(rejected))}"
    return Condition.false(type_, "RejectedByKernel", message, blocks=Blocks.SERVICES)


def _build_addresses_condition(
    type_: str, conflicts: Mapping[ServicePortName, Sequence[Finding]]
) -> Condition:
    """Return whether no two Services claim one address; a lost cluster IP means that a Service is not served."""
    if not conflicts:
        return Condition.true(type_)
    texts = (
        f"{name} does not get {parameters.get('frontend') or parameters.get('address') or _format_node_port(parameters)}, "
        f"which {parameters['holder']} holds"
        for name, findings in sorted(conflicts.items())
        for parameters in (finding.parameters for finding in findings)
    )
    count = sum(map(len, conflicts.values()))
    is_unserved = any(one.is_error for findings in conflicts.values() for one in findings)
    return Condition.false(
        type_,
        "AddressConflict",
        f"Services claim the same addresses: {join_first(texts, count)}",
        blocks=Blocks.SERVICES if is_unserved else Blocks.NOTHING,
    )


def _format_node_port(parameters: Mapping[str, Value]) -> str:
    return f"node port {parameters['nodePort']}"


def join_first(texts: Iterable[str], total: int) -> str:
    """Join what fits into a message; texts may be generated, because only the first are needed."""
    named = "; ".join(itertools.islice(texts, MAX_NAMED))
    more = total - MAX_NAMED
    return f"{named}; and {more} more (status -o json lists them)" if more > 0 else named
