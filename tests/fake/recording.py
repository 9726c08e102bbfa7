"""A backend that records its syncs and fails on demand; the kernel of the sync loop's tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pointsman.backends.contract import (
    Backend,
    Comparison,
    Difference,
    SyncReport,
    SyncRequest,
    plans_to_compare,
)
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName


class RecordingBackend(Backend):
    """Behaves as the contract demands: a failing sync leaves the programmed state as it was."""

    external_changes: int | None = 0

    def __init__(self, family: Family = Family.IPV4) -> None:
        self.family = family
        self.requests: list[tuple[bool, dict[ServicePortName, ServicePlan | None]]] = []
        self.programmed: dict[ServicePortName, ServicePlan] = {}
        self.failures: list[Exception] = []
        self.drifts: list[Difference | Exception] = []
        self.met: Difference | None = None
        """What every sync finds and repairs."""
        self.refuse: Mapping[ServicePortName, str] = {}
        self.reading: Callable[[], object] = lambda: None
        """Called by every comparison, on its thread, before it looks; may take as long as it likes."""
        self.closed = False
        self.maintained = 0
        """How often `maintain` was called."""

    def sync(self, request: SyncRequest) -> SyncReport:
        self.requests.append((request.full, dict(request.changed)))
        if self.failures:
            raise self.failures.pop(0)
        if request.full:
            self.programmed = dict(request.plans)
        else:
            for name, plan in request.changed.items():
                if plan is None:
                    del self.programmed[name]
                else:
                    self.programmed[name] = plan
        for name in self.refuse:
            self.programmed.pop(name, None)
        return SyncReport(full=request.full, rejected=self.refuse, drift=self.met)

    def maintain(self) -> None:
        self.maintained += 1

    def find_drift(self) -> Difference | None:
        found = self.drifts.pop(0) if self.drifts else None
        if isinstance(found, Exception):
            raise found
        return found

    def prepare_comparison(
        self, request: SyncRequest, only: Collection[ServicePortName] | None = None
    ) -> Comparison:
        """Compare with what was programmed, once `reading` returns."""
        plans = plans_to_compare(request.plans, only, self.refuse)

        def compare() -> list[Difference]:
            self.reading()
            return [
                Difference(str(name), want=str(plan), have="", owner=name)
                for name, plan in plans.items()
                if self.programmed.get(name) != plan
            ]

        return Comparison(compare)

    def close(self) -> None:
        self.closed = True
