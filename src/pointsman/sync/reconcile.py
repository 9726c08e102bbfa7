"""Changes in, kernel state out: plan what changed, pass it to the backend, record what the kernel accepted.

One Reconciler serves one IP family on that family's worker thread. Only values leave it: a `SyncOutcome` or a
`SyncFailed`. After a `SyncFailed` no change is lost: the plans hold the desired state, the changed service ports stay
recorded, and the next sync is a full one. After any other exception the state may be half updated; `build_successor`
returns a reconciler that derives everything again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from pointsman.backends.contract import Backend, Comparison, SyncReport, SyncRequest
from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.model.claims import ClaimIndex
from pointsman.model.findings import CONFLICTS, Code, Finding, ObjectReference, Severity
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import Outcome, ServicePlan
from pointsman.model.planning import plan_service_port
from pointsman.model.service import ServicePortName
from pointsman.model.slots import MAX_EXTRA_ELEMENTS, HashBudget, estimate_fill_seconds
from pointsman.model.tracker import Changes, PortState

MAX_FILL_SECONDS = 0.2
"""Hash tables that take longer to fill wait for the next sync, so that they do not delay other Services."""
MAX_TRIGGER_TIMES = 1000
"""Per Service: while syncs fail, later changes of the same Service add no more."""


class PlanChange(msgspec.Struct, frozen=True):
    """Plans of one service port before and after a sync; None where it did not or does not exist."""

    old: ServicePlan | None
    new: ServicePlan | None


class Totals(msgspec.Struct, frozen=True):
    """Sizes of the desired state after a sync."""

    service_ports: int = 0
    endpoints: int = 0
    without_local_internal: int = 0
    """Service ports, or Services where the mode counts them, with internal traffic policy Local and no local endpoint."""
    without_local_external: int = 0


class SyncOutcome(msgspec.Struct, frozen=True):
    """Result of a successful sync."""

    report: SyncReport
    changes: Mapping[ServicePortName, PlanChange]
    trigger_times: Mapping[str, Sequence[float]]
    context: NodeContext
    seconds: float
    first: bool
    """It is the first successful sync of this process."""
    totals: Totals = Totals()
    findings: tuple[Finding, ...] = ()
    """What is new since the last sync: a finding that persists is reported once."""
    conflicts: Mapping[ServicePortName, Sequence[Finding]] = {}
    """Service ports that lost an address or node port to another, as of this sync."""
    waiting: frozenset[ServicePortName] = frozenset()
    """Service ports whose hash tables take long to fill: another sync must follow at once."""

    @property
    def family(self) -> Family:
        return self.context.family


class SyncFailed(KernelError):
    """The kernel rejected a sync: the previous rules remain, no change is lost, the next sync is a full one."""

    def __init__(
        self,
        message: str,
        errno: int = 0,
        *,
        full: bool,
        unsynced: frozenset[ServicePortName] = frozenset(),
        findings: tuple[Finding, ...] = (),
    ) -> None:
        super().__init__(message, errno)
        self.full = full
        self.unsynced = unsynced
        """Service ports whose latest plan the kernel has not accepted."""
        self.findings = findings


class Snapshot(msgspec.Struct, frozen=True):
    """A copy of the desired state between two syncs."""

    plans: Mapping[ServicePortName, ServicePlan]
    unsynced: frozenset[ServicePortName]
    syncs: int
    """Number of syncs begun before: nothing was written between two snapshots with the same number."""
    context: NodeContext | None
    """Context of the last sync."""
    rejected: Mapping[ServicePortName, str] = {}
    """Service ports that the kernel rejected in the last successful sync, with the reason."""


class Reconciler:
    """Desired state of one IP family, and the backend that programs it."""

    def __init__(
        self,
        backend: Backend,
        *,
        plan: Callable[..., ServicePlan | Finding] = plan_service_port,
        count_services: bool = False,
        families: int = 1,
    ) -> None:
        """`families` is the number of IP families of the node, which share its limits."""
        self.backend = backend
        self.plans: dict[ServicePortName, ServicePlan] = {}
        self._plan_service_port = plan
        self._tally = _Tally(count_services=count_services)
        self._findings = _Findings()
        self._states: dict[ServicePortName, PortState] = {}
        self._rejected: Mapping[ServicePortName, str] = {}
        self._claims = ClaimIndex()
        self._families = families
        self._hash_budget = HashBudget(MAX_EXTRA_ELEMENTS // families)
        self._before: dict[ServicePortName, ServicePlan | None] = {}
        """Plans in the kernel, of service ports whose plan was replaced since the last successful sync."""
        self._not_planned: set[ServicePortName] = set()
        """Service ports whose planning raised an exception; every sync tries again."""
        self._waiting: dict[ServicePortName, None] = {}
        """Service ports whose new hash tables are filled by a later sync, in order; the kernel keeps their previous plans."""
        self._fill_seconds = 0.0
        """Of the hash tables of the last sync."""
        self._max_fill_seconds = MAX_FILL_SECONDS
        """Of this sync; 0 for changes that arrived while hash tables were filled."""
        self._trigger_times: dict[str, list[float]] = {}
        self._context: NodeContext | None = None
        self._full_needed = True
        self._succeeded_once = False
        self._syncs = 0

    def build_successor(self) -> Reconciler:
        """Return a reconciler that has only the record of what the kernel may hold; its first sync must get every state."""
        successor = Reconciler(
            self.backend,
            plan=self._plan_service_port,
            count_services=self._tally.count_services,
            families=self._families,
        )
        successor._before = {**self.plans, **self._before}
        successor._syncs, successor._succeeded_once = self._syncs, self._succeeded_once
        return successor

    def sync(self, changes: Changes, context: NodeContext, *, full: bool = False) -> SyncOutcome:
        """Program the changes; raise SyncFailed, with no change lost, when the kernel rejects them."""
        started = time.perf_counter()
        self._syncs += 1
        self._absorb(changes, context)
        request = SyncRequest(
            context=context,
            plans=self.plans,
            changed={name: self.plans.get(name) for name in self._before},
            full=full or self._full_needed,
        )
        self._full_needed = True
        try:
            report = self.backend.sync(request)
        except KernelError as error:
            raise SyncFailed(
                str(error),
                error.errno,
                full=request.full,
                unsynced=frozenset((*self._waiting, *self._before)),
                findings=self._findings.take(),
            ) from error
        self._findings.replace_rejections(report.rejected)
        self._rejected = report.rejected
        accepted = {
            name: PlanChange(old, new)
            for name, old in self._before.items()
            if (new := self.plans.get(name)) != old or not request.full
        }
        waiting = {name.key for name in self._waiting}
        times, self._trigger_times = self._trigger_times, {}
        for key in waiting & times.keys():
            self._trigger_times[key] = times.pop(key)
        outcome = SyncOutcome(
            report=report,
            changes=accepted,
            trigger_times=times,
            context=context,
            seconds=time.perf_counter() - started,
            first=not self._succeeded_once,
            totals=self._tally.compute_totals(len(self.plans)),
            findings=self._findings.take(),
            conflicts=dict(self._findings.conflicts),
            waiting=frozenset(self._waiting),
        )
        self._before = {}
        self._full_needed = False
        self._succeeded_once = True
        return outcome

    def snapshot(self) -> Snapshot:
        """Return a copy of the current plans."""
        unsynced = frozenset((*self._waiting, *self._before))
        return Snapshot(dict(self.plans), unsynced, self._syncs, self._context, self._rejected)

    def prepare_comparison(
        self, taken: Snapshot, context: NodeContext, only: Collection[ServicePortName] | None = None
    ) -> Comparison:
        """Return a comparison of the kernel with a snapshot, to be run on another thread; `only` selects service ports."""
        return self.backend.prepare_comparison(SyncRequest(context, taken.plans, changed={}, full=True), only)

    def _absorb(self, changes: Changes, context: NodeContext) -> None:
        dirty = self._not_planned | changes.states.keys()
        for name, state in changes.states.items():
            old = self._states.get(name)
            if state is not None:
                self._states[name] = state
            elif old is not None:
                del self._states[name]
            self._claims.replace(
                old.port if old is not None else None, state.port if state is not None else None
            )
            self._set_hash_cost(name, state, context)
        dirty |= self._claims.take_affected()
        for key, times in changes.trigger_times.items():
            known = self._trigger_times.setdefault(key, [])
            known += times[: MAX_TRIGGER_TIMES - len(known)]
        self._max_fill_seconds = 0.0 if changes.states and self._fill_seconds else MAX_FILL_SECONDS
        self._fill_seconds = 0.0
        may_wait = context == self._context and context.balancing.capabilities.fills_hash_tables
        if context != self._context:
            self._context = context
            self._full_needed = True
            dirty = set(self._states) | dirty
            for name, known_state in self._states.items():
                self._set_hash_cost(name, known_state, context)
        dirty |= self._hash_budget.take_affected()
        waiting, self._waiting = self._waiting, {}
        for name in (*waiting, *(dirty - waiting.keys())):
            self._replan(name, context, may_wait=may_wait)

    def _set_hash_cost(self, name: ServicePortName, state: PortState | None, context: NodeContext) -> None:
        port, endpoints = (state.port, len(state.endpoints)) if state is not None else (None, 0)
        self._hash_budget.replace(name, port, endpoints, context.balancing)

    def _replan(self, name: ServicePortName, context: NodeContext, *, may_wait: bool) -> None:
        planned = self._plan(name, context)
        if isinstance(planned, Finding):
            self._findings.replace(name, (planned,))
            plan = None
        else:
            self._findings.replace(name, planned.findings if planned is not None else ())
            plan = planned
        old = self.plans.get(name)
        if plan == old:
            return
        if may_wait and plan is not None and self._must_wait(old, plan):
            self._waiting[name] = None
            return
        self._before.setdefault(name, old)
        if plan is None:
            del self.plans[name]
        else:
            self.plans[name] = plan
        self._tally.replace(old, plan)

    def _must_wait(self, old: ServicePlan | None, new: ServicePlan) -> bool:
        """Return whether to keep the old plan for now; not if it has an address that another service port may get."""
        seconds = estimate_fill_seconds(len(new.endpoints.reachable), len(new.frontends), new.balancing)
        if (
            seconds
            and self._fill_seconds >= self._max_fill_seconds
            and _list_places(old) <= _list_places(new)
        ):
            return True
        self._fill_seconds += seconds
        return False

    def _plan(self, name: ServicePortName, context: NodeContext) -> ServicePlan | Finding | None:
        self._not_planned.discard(name)
        state = self._states.get(name)
        if state is None:
            return None
        try:
            return self._plan_service_port(
                state.port,
                state.endpoints,
                context,
                self._claims.find_lost(state.port),
                exceeds_hash_budget=name in self._hash_budget.exceeding,
            )
        except Exception as error:  # noqa: BLE001 one object must never keep the others from being served
            self._not_planned.add(name)
            return Finding(Code.INTERNAL_ERROR, Severity.ERROR, parameters={"error": repr(error)})


def _list_places(plan: ServicePlan | None) -> set[tuple[bytes, int]]:
    return {(one.address, one.port) for one in plan.frontends} if plan is not None else set()


class _Tally:
    """Counts the contents of the plans, change by change."""

    def __init__(self, *, count_services: bool) -> None:
        self.count_services = count_services
        self._endpoints = 0
        self._without_local_internal: Counter[str | ServicePortName] = Counter()
        self._without_local_external: Counter[str | ServicePortName] = Counter()

    def replace(self, old: ServicePlan | None, new: ServicePlan | None) -> None:
        for plan, by in ((old, -1), (new, 1)):
            if plan is None:
                continue
            port = plan.port
            counted = plan.name.key if self.count_services else plan.name
            self._endpoints += by * len(plan.endpoints.all)
            if port.service.internal_local and plan.internal_outcome is Outcome.DROPPED:
                _count(self._without_local_internal, counted, by)
            if (
                port.service.external_local
                and port.externally_accessible
                and plan.external_outcome is Outcome.DROPPED
            ):
                _count(self._without_local_external, counted, by)

    def compute_totals(self, service_ports: int) -> Totals:
        return Totals(
            service_ports,
            self._endpoints,
            len(self._without_local_internal),
            len(self._without_local_external),
        )


def _count(counter: Counter[str | ServicePortName], what: str | ServicePortName, by: int) -> None:
    counter[what] += by
    if not counter[what]:
        del counter[what]


class _Findings:
    """Current findings of plans and kernel, so that each is reported once for as long as it persists."""

    def __init__(self) -> None:
        self._by_plan: dict[ServicePortName, tuple[Finding, ...]] = {}
        self.conflicts: dict[ServicePortName, list[Finding]] = {}
        """Those about addresses and node ports that other service ports own."""
        self._by_kernel: Mapping[ServicePortName, str] = {}
        self._new: list[Finding] = []

    def replace(self, name: ServicePortName, findings: tuple[Finding, ...]) -> None:
        """Replace the findings of the plan of a service port."""
        known = self._by_plan.get(name, ())
        if findings == known:
            return
        before = set(known)
        self._new += [finding.about(_build_reference(name)) for finding in findings if finding not in before]
        if findings:
            self._by_plan[name] = findings
        else:
            del self._by_plan[name]
        self.conflicts.pop(name, None)
        conflicts = [finding for finding in findings if finding.code in CONFLICTS]
        if conflicts:
            self.conflicts[name] = conflicts

    def replace_rejections(self, rejected: Mapping[ServicePortName, str]) -> None:
        """Replace the service ports that the kernel rejects, with the reasons."""
        self._new += [
            Finding(Code.KERNEL_REFUSED, Severity.ERROR, _build_reference(name), {"reason": reason})
            for name, reason in rejected.items()
            if self._by_kernel.get(name) != reason
        ]
        self._by_kernel = rejected

    def take(self) -> tuple[Finding, ...]:
        new, self._new = tuple(self._new), []
        return new


def _build_reference(name: ServicePortName) -> ObjectReference:
    return ObjectReference("Service", name.key, name.port)
