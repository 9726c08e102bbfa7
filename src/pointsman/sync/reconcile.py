"""Changes in, kernel state out: plan what is dirty, hand it to the backend, remember only what was accepted.

One Reconciler serves one IP family on that family's worker thread. After a failure nothing is forgotten: the
plans already hold the desired state, the changed service ports stay on the list, and the next sync is a full one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from pointsman.backends.contract import Backend, Difference, SyncReport, SyncRequest
from pointsman.errors import KernelError
from pointsman.model.claims import ClaimIndex
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import Outcome, ServicePlan
from pointsman.model.planning import clash_report, plan_service_port
from pointsman.model.problem import Problem
from pointsman.model.service import ServicePortName
from pointsman.model.tracker import Changes, PortState

OnRefused = Callable[[ServicePortName, Problem], None]


class PlanChange(msgspec.Struct, frozen=True):
    """How one service port differs from what the kernel had before; conntrack clean-up needs both sides."""

    old: ServicePlan | None
    new: ServicePlan | None


class SyncOutcome(msgspec.Struct, frozen=True):
    """A successful sync: what the backend reports, what changed, how long it took."""

    report: SyncReport
    changes: Mapping[ServicePortName, PlanChange]
    trigger_times: Mapping[str, tuple[float, ...]]
    context: NodeContext
    seconds: float
    first: bool
    """No sync had succeeded before this one in this process."""


class Reconciler:
    """Desired state of one IP family and the backend that puts it into the kernel."""

    def __init__(
        self,
        backend: Backend,
        *,
        on_refused: OnRefused | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.backend = backend
        self.plans: dict[ServicePortName, ServicePlan] = {}
        self.without_local_internal: set[ServicePortName] = set()
        self.without_local_external: set[ServicePortName] = set()
        self.endpoint_count = 0
        self._on_refused = on_refused
        self._clock = clock
        self._states: dict[ServicePortName, PortState] = {}
        self._claims = ClaimIndex()
        self._before: dict[ServicePortName, ServicePlan | None] = {}
        self._trigger_times: dict[str, tuple[float, ...]] = {}
        self._rejected: Mapping[ServicePortName, str] = {}
        self._context: NodeContext | None = None
        self._full_needed = True
        self._succeeded_once = False

    @property
    def unsynced(self) -> int:
        """Service ports whose latest plan the kernel has not accepted yet."""
        return len(self._before)

    @property
    def unsynced_names(self) -> frozenset[ServicePortName]:
        return frozenset(self._before)

    def sync(self, changes: Changes, context: NodeContext, *, full: bool = False) -> SyncOutcome:
        """Bring the kernel up to date; raises KernelError with nothing lost when it refuses."""
        started = self._clock()
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
            error.partial = not request.full
            raise
        for name, reason in report.rejected.items():
            if self._rejected.get(name) != reason:
                self._refuse(name, Problem("KernelRefused", reason))
        self._rejected = report.rejected
        accepted = {name: PlanChange(old, self.plans.get(name)) for name, old in self._before.items()}
        outcome = SyncOutcome(
            report=report,
            changes=accepted,
            trigger_times=self._trigger_times,
            context=context,
            seconds=self._clock() - started,
            first=not self._succeeded_once,
        )
        self._before = {}
        self._trigger_times = {}
        self._full_needed = False
        self._succeeded_once = True
        return outcome

    def verify(self, context: NodeContext) -> list[Difference]:
        """Compare the kernel with the plans, changing nothing."""
        return self.backend.verify(SyncRequest(context=context, plans=self.plans, changed={}, full=True))

    def _absorb(self, changes: Changes, context: NodeContext) -> None:
        states = dict(changes.states)
        if changes.complete:
            states |= dict.fromkeys(self._states.keys() - states.keys())
        dirty = set(states)
        for name, state in states.items():
            old = self._states.pop(name, None)
            self.endpoint_count -= len(old.endpoints) if old is not None else 0
            if state is not None:
                self._states[name] = state
                self.endpoint_count += len(state.endpoints)
            dirty |= self._claims.update(name, state.port if state is not None else None)
        for key, times in changes.trigger_times.items():
            self._trigger_times[key] = self._trigger_times.get(key, ()) + times
        if context != self._context:
            self._context = context
            self._full_needed = True
            dirty = set(self._states) | dirty
        for name in dirty:
            self._replan(name, context)

    def _replan(self, name: ServicePortName, context: NodeContext) -> None:
        state = self._states.get(name)
        plan = None
        if state is not None:
            plan = self._plan(name, state, context)
        old = self.plans.get(name)
        if plan == old:
            return
        self._before.setdefault(name, old)
        if plan is None:
            self.plans.pop(name, None)
        else:
            self.plans[name] = plan
            for problem in plan.refused:
                if old is None or problem not in old.refused:
                    self._refuse(name, problem)
        self._count_missing_local(name, plan)

    def _plan(self, name: ServicePortName, state: PortState, context: NodeContext) -> ServicePlan | None:
        lost = self._claims.lost(name)
        try:
            plan = plan_service_port(state.port, state.endpoints, context, lost)
        except Exception as error:  # noqa: BLE001 one object must never keep the others from being served
            self._refuse(name, Problem("InternalError", f"cannot be planned: {error!r}"))
            return None
        if plan is None:
            clash = clash_report(state.port, lost)
            if clash is not None:
                self._refuse(name, clash)
        return plan

    def _count_missing_local(self, name: ServicePortName, plan: ServicePlan | None) -> None:
        port = plan.port if plan is not None else None
        internal = plan is not None and port is not None and port.internal_local
        external = (
            plan is not None and port is not None and port.external_local and port.externally_accessible
        )
        for lacking, policy, outcome in (
            (self.without_local_internal, internal, plan.internal_outcome if plan else None),
            (self.without_local_external, external, plan.external_outcome if plan else None),
        ):
            if policy and outcome is Outcome.DROP:
                lacking.add(name)
            else:
                lacking.discard(name)

    def _refuse(self, name: ServicePortName, problem: Problem) -> None:
        if self._on_refused is not None:
            self._on_refused(name, problem)
