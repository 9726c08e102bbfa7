"""The ipvs backend: plans in, virtual servers, ipsets, addresses and rules in the kernel out.

The kernel is read once and then owned: a sync compares only the rows that its changes touched with what the kernel is known to
hold, and sends the difference over netlink; the iptables program runs only when a rule changes. What to send, and in which
order, is decided in `steps`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec

from pointsman.backends.contract import (
    Backend,
    Comparison,
    Difference,
    SyncReport,
    SyncRequest,
    Traffic,
    abort_if_mostly_rejected,
    compile_each,
    plans_to_compare,
)
from pointsman.backends.ipvs.check import DriftCheck, compare_kernel
from pointsman.backends.ipvs.compile import SERVER, Compiler, Schedulers
from pointsman.backends.ipvs.rules import RuleSet, desired_rules
from pointsman.backends.ipvs.run import SyncRun
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.backends.ipvs.steps import Draining, DrainReals, KernelState, all_keys
from pointsman.backends.ledger import Ledger
from pointsman.backends.netfilter.runners import RuleTool, activate_dormant
from pointsman.conditions import Condition
from pointsman.kernel.ipvs_objects import VirtualKey
from pointsman.kernel.nft_ruleset import NftRuleset
from pointsman.model.addresses import Cidr, Family
from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName

DRAIN_SECONDS = 24 * 3600.0
_DRAIN_CHECK_SECONDS = 60.0


class IpvsSettings(msgspec.Struct, frozen=True):
    """The `ipvs` section of the configuration, as far as a sync needs it."""

    scheduler: str = "rr"
    exclude_cidrs: tuple[Cidr, ...] = ()
    drain_seconds: float = DRAIN_SECONDS
    """After this long a real server is removed although connections are left."""

    def is_excluded(self, key: VirtualKey) -> bool:
        """Return whether a virtual server belongs to another program and is never removed."""
        return any(cidr.contains(key.address) for cidr in self.exclude_cidrs)


class IpvsBackend(Backend):
    """ipvs mode for one IP family; see `mode.prepare` for what must be done once before."""

    def __init__(
        self,
        family: Family,
        iptables: RuleTool,
        settings: IpvsSettings = IpvsSettings(),  # noqa: B008 frozen
        *,
        random_fully: bool = True,
        clock: Callable[[], float] = time.monotonic,
        open_sockets: Callable[[Family], Sockets] = Sockets,
        ruleset: NftRuleset | None = None,
    ) -> None:
        self.family = family
        self._iptables = iptables
        self._settings = settings
        self._random_fully = random_fully
        self._clock = clock
        self._ruleset = ruleset
        self._sockets = open_sockets(family)
        self._schedulers = Schedulers(settings.scheduler)
        self._desired = Ledger()
        self._state = KernelState()
        self._draining = Draining(settings.drain_seconds)
        self._drain_check_due = 0.0
        self._drift_check = DriftCheck()
        self._rejected: dict[ServicePortName, str] = {}
        self._conditions: dict[str, Condition] = {}
        """Since the last full sync, by type."""
        self._context: NodeContext | None = None
        """Of the last sync; None when it is unknown what the kernel holds."""

    def sync(self, request: SyncRequest) -> SyncReport:
        full = request.full or request.context != self._context
        self._context = None
        changes = request.plans if full else request.changed
        rejected = {} if full else {name: why for name, why in self._rejected.items() if name not in changes}
        plans = {name: plan for name, plan in changes.items() if plan is not None}
        known = Schedulers(self._settings.scheduler) if full else self._schedulers
        self._schedulers = known.probe(plans.values(), self._sockets.has_scheduler)
        fragments = compile_each(plans, Compiler(request.context, self._schedulers).compile, rejected)
        check_rejected = partial(
            abort_if_mostly_rejected, total=len(request.plans), before=frozenset(self._rejected)
        )
        check_rejected(rejected)
        rows = {name: fragments.get(name, ()) for name in changes}
        if full:
            self._desired = Ledger(rows)
            run = self._start_run(rejected, check_rejected)
            run.take_over()
            self._state, self._drift_check = run.state, DriftCheck()
            touched = all_keys(self._desired, run.state)
        else:
            touched = self._desired.update(rows)
            run = self._start_run(rejected, check_rejected)
        rules = self._desired_rules(request.context)
        run.apply(touched, rules)
        if full:
            run.corrected += activate_dormant(self._ruleset)
        self._draining.retain(run.state.weights)
        if run.has_changed_servers:
            self._drift_check.forget_servers()
        self._rejected = run.rejected
        self._conditions = run.conditions if full else self._conditions | run.conditions
        self._context = request.context
        conditions = (*describe_missing(self._schedulers), *self._conditions.values())
        return run.report(rules, conditions, full=full)

    def maintain(self) -> None:
        """Remove drained real servers whose connections ended; cheap, at most once a minute."""
        if len(self._draining) and self._clock() >= self._drain_check_due:
            self._drain_check_due = self._clock() + _DRAIN_CHECK_SECONDS
            self._start_run({}, lambda _rejected: None).drain(DrainReals(self._draining.reals()))

    def drift(self) -> Difference | None:
        if self._context is None:
            return None
        return self._drift_check.find(self._state, self._sockets, self._settings.is_excluded)

    def comparison(self, request: SyncRequest, only: Collection[ServicePortName] | None = None) -> Comparison:
        compare = partial(
            compare_kernel,
            request.context,
            plans_to_compare(request.plans, only, ()),
            rules=None if only is None else self._desired_rules(request.context),
            save=self._iptables.save,
            schedulers=self._schedulers,
            random_fully=self._random_fully,
            draining=frozenset(self._draining.reals()),
            excluded=self._settings.is_excluded,
            ruleset=self._ruleset,
        )
        return Comparison(compare)

    def traffic(self) -> Traffic:
        """Return connections, packets and bytes per service port, over all its addresses, since they were added."""
        connections: Counter[ServicePortName] = Counter()
        packets: Counter[ServicePortName] = Counter()
        octets: Counter[ServicePortName] = Counter()
        for server, counted in self._sockets.servers().items():
            row = self._desired.rows(SERVER).get(server.key)
            if row is not None:
                connections[row.owner] += counted.connections
                packets[row.owner] += counted.packets_in + counted.packets_out
                octets[row.owner] += counted.bytes_in + counted.bytes_out
        return Traffic(connections=connections, packets=packets, bytes=octets)

    def close(self) -> None:
        self._sockets.close()

    @property
    def draining(self) -> int:
        """How many real servers wait for their last connections."""
        return len(self._draining)

    def _start_run(
        self,
        rejected: dict[ServicePortName, str],
        check_rejected: Callable[[Mapping[ServicePortName, str]], None],
    ) -> SyncRun:
        return SyncRun(
            self._sockets,
            self._iptables,
            self._desired,
            self._state,
            self._draining,
            now=self._clock(),
            excluded=self._settings.is_excluded,
            rejected=rejected,
            check_rejected=check_rejected,
        )

    def _desired_rules(self, context: NodeContext) -> RuleSet:
        return desired_rules(self._desired, context, random_fully=self._random_fully)


def describe_missing(schedulers: Schedulers) -> list[Condition]:
    """Return the condition that the kernel lacks schedulers which Services request; empty when it has all."""
    missing = schedulers.missing
    if not missing:
        return []
    message = f"the kernel lacks IPVS schedulers that Services request: {', '.join(missing)}; using {schedulers.default}"
    remedy = f"modprobe -a {' '.join(f'ip_vs_{name}' for name in missing)}"
    return [Condition.false("KernelFeatures", "SchedulerMissing", message, remedy)]
