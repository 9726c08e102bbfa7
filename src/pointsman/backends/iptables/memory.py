"""What the kernel accepted last: compiled fragments, so that a sync is a join and not a rebuild."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.backends.iptables.compile import compile_plan
from pointsman.backends.iptables.fragment import Fragment
from pointsman.backends.iptables.settings import LARGE_CLUSTER_ENDPOINTS, Settings
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName


def comments_wanted(plans: Iterable[ServicePlan]) -> bool:
    """Large clusters go without comments on endpoint rules."""
    return sum(len(plan.all_endpoints) for plan in plans) <= LARGE_CLUSTER_ENDPOINTS


def _same(one: ServicePlan, other: ServicePlan) -> bool:
    return one is other or one == other


class Memory:
    """Committed fragments with the plans they were made from, and their running totals."""

    def __init__(self) -> None:
        self.fragments: dict[ServicePortName, Fragment] = {}
        self.endpoints = 0
        self.filter_rules = 0
        self.nat_rules = 0
        self._origins: dict[ServicePortName, tuple[ServicePlan, bool]] = {}

    def copied(self) -> Memory:
        """What is remembered now, for somebody on another thread."""
        copy = Memory()
        copy.fragments, copy._origins = dict(self.fragments), dict(self._origins)
        return copy

    def recall(self, plan: ServicePlan) -> Fragment | None:
        """What was committed for exactly this plan, with or without comments."""
        origin = self._origins.get(plan.name)
        return self.fragments[plan.name] if origin is not None and _same(origin[0], plan) else None

    def compiled(self, plan: ServicePlan, settings: Settings, comments: bool) -> Fragment:
        """The plan's fragment, from memory when plan and comments are those of last time.

        `settings` must be those of the committed fragments; a memory does not outlive them.
        """
        origin = self._origins.get(plan.name)
        if origin is not None and origin[1] == comments and _same(origin[0], plan):
            return self.fragments[plan.name]
        return compile_plan(plan, settings, comments=comments)

    def comments_wanted_after(self, changed: Mapping[ServicePortName, ServicePlan | None]) -> bool:
        """The same question for what the cluster will be like once these changes are in."""
        total = self.endpoints
        for name, plan in changed.items():
            old = self.fragments.get(name)
            total += (len(plan.all_endpoints) if plan else 0) - (old.endpoints if old else 0)
        return total <= LARGE_CLUSTER_ENDPOINTS

    def replace(
        self,
        fragments: Mapping[ServicePortName, Fragment],
        plans: Mapping[ServicePortName, ServicePlan],
        comments: bool,
    ) -> None:
        """Remember these fragments and nothing else."""
        self.fragments = {}
        self._origins = {}
        self.endpoints = self.filter_rules = self.nat_rules = 0
        for name, fragment in fragments.items():
            self._add(name, fragment, plans[name], comments)

    def update(
        self,
        changed: Mapping[ServicePortName, ServicePlan | None],
        compiled: Mapping[ServicePortName, Fragment],
        rejected: Iterable[ServicePortName],
        comments: bool,
    ) -> None:
        """Remember what changed; rejected service ports are forgotten."""
        refused = frozenset(rejected)
        for name, plan in changed.items():
            old = self.fragments.get(name)
            if old is not None:
                self._count(old, -1)
            if plan is None or name in refused:
                self.fragments.pop(name, None)
                self._origins.pop(name, None)
            else:
                self._add(name, compiled[name], plan, comments)

    def _add(self, name: ServicePortName, fragment: Fragment, plan: ServicePlan, comments: bool) -> None:
        self.fragments[name] = fragment
        self._origins[name] = (plan, comments)
        self._count(fragment, 1)

    def _count(self, fragment: Fragment, sign: int) -> None:
        self.endpoints += sign * fragment.endpoints
        self.filter_rules += sign * fragment.filter_count
        self.nat_rules += sign * fragment.nat_count
