"""A comparison of the kernel with what it should hold, beside the backend: own sockets, own compiling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

from pointsman.backends.contract import Difference, compile_each
from pointsman.backends.ipvs import verify
from pointsman.backends.ipvs.compile import Compiler
from pointsman.backends.ipvs.desired import Desired
from pointsman.backends.ipvs.known import Known
from pointsman.backends.ipvs.rules import FILTER, NAT, RuleSet
from pointsman.backends.ipvs.schedulers import Schedulers
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.backends.netfilter.sleeping import sleeping
from pointsman.kernel.ipvs_objects import RealOf, VirtualKey
from pointsman.kernel.nft_ruleset import Ruleset
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName


class IpvsComparison:
    """Implements `pointsman.backends.contract.Comparison`."""

    def __init__(
        self,
        context: NodeContext,
        plans: Mapping[ServicePortName, ServicePlan],
        *,
        rules: RuleSet | None,
        save: Callable[[str], bytes],
        scheduler: str,
        known_schedulers: Mapping[str, bool],
        random_fully: bool,
        draining: Collection[RealOf],
        excluded: Callable[[VirtualKey], bool],
        ruleset: Ruleset,
    ) -> None:
        """`rules` are given when these are the plans of some service ports only: they depend on all of them."""
        self._context = context
        self._plans = plans
        self._rules = rules
        self._save = save
        self._scheduler = scheduler
        self._known_schedulers = known_schedulers
        self._random_fully = random_fully
        self._draining = draining
        self._excluded = excluded
        self._ruleset = ruleset

    def differences(self) -> list[Difference]:
        with contextlib.closing(Sockets(self._context.family)) as sockets:
            schedulers = Schedulers(self._scheduler, sockets.has_scheduler, self._known_schedulers)
            compiler = Compiler(self._context, schedulers)
            desired = Desired(compile_each(self._plans, compiler.fragment, {}))
            found = self._read(sockets, desired)
        rules = self._rules or desired.rules(self._context, random_fully=self._random_fully)
        tables = {table: self._save(table) for table in (NAT, FILTER)}
        return [
            *verify.server_differences(desired, found, self._draining, self._excluded),
            *verify.entry_differences(desired, found),
            *verify.address_differences(desired, found),
            *verify.rule_differences(rules, tables),
            *sleeping(self._ruleset),
        ]

    def _read(self, sockets: Sockets, desired: Desired) -> Known:
        if self._rules is None:
            return sockets.read(desired.servers)
        return sockets.read_some(desired.servers, desired.entries, desired.addresses)
