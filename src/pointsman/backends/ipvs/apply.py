"""The ipvs backend: plans in, virtual servers, ipsets, addresses and rules in the kernel out.

The kernel is read once and then owned: a sync compares only the rows that its changes touched with what the kernel is known to
hold, and sends the difference over netlink; the iptables program runs only when a rule changes. What to send, and in which
order, is decided in `steps`.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from pointsman.backends.contract import (
    PRESENT,
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
from pointsman.backends.ipvs.check import DriftCheck, Excluded, compare_kernel
from pointsman.backends.ipvs.compile import SERVER, Compiler, Schedulers
from pointsman.backends.ipvs.rules import JUMPS, RuleSet, build_desired_rules
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.backends.ipvs.steps import (
    TCP,
    AddEntries,
    AddReals,
    AddServers,
    Bind,
    DeleteEntries,
    Draining,
    DrainReals,
    KernelState,
    NetlinkStep,
    RemoveReals,
    RemoveServers,
    Unbind,
    WriteRules,
    list_all_keys,
    plan_steps,
)
from pointsman.backends.ledger import Keys, Ledger
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.rule_text import Chains, parse_chains
from pointsman.backends.netfilter.runners import RuleTool, activate_dormant, describe_unreadable
from pointsman.conditions import Condition
from pointsman.errors import KernelError
from pointsman.kernel.iptables import Incompatible
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, VirtualKey
from pointsman.kernel.nft_ruleset import NftRuleset
from pointsman.model.addresses import Cidr, Family, address_text
from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName

DRAIN_SECONDS = 24 * 3600.0
_DRAIN_CHECK_SECONDS = 60.0
_CHANGED_EXTERNALLY = frozenset((errno.EEXIST, errno.ESRCH, errno.ENOENT))
"""Error numbers which mean that the kernel does not hold what was last read."""


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
            touched = list_all_keys(self._desired, run.state)
        else:
            touched = self._desired.update(rows)
            run = self._start_run(rejected, check_rejected)
        rules = self._build_desired_rules(request.context)
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
            self._start_run({}, lambda _rejected: None).drain(DrainReals(self._draining.list_reals()))

    def find_drift(self) -> Difference | None:
        if self._context is None:
            return None
        return self._drift_check.find(self._state, self._sockets, self._settings.is_excluded)

    def prepare_comparison(
        self, request: SyncRequest, only: Collection[ServicePortName] | None = None
    ) -> Comparison:
        compare = partial(
            compare_kernel,
            request.context,
            plans_to_compare(request.plans, only, ()),
            rules=None if only is None else self._build_desired_rules(request.context),
            save=self._iptables.save,
            schedulers=self._schedulers,
            random_fully=self._random_fully,
            draining=frozenset(self._draining.list_reals()),
            excluded=self._settings.is_excluded,
            ruleset=self._ruleset,
        )
        return Comparison(compare)

    def count_traffic(self) -> Traffic:
        """Return connections, packets and bytes per service port, over all its addresses, since they were added."""
        connections: Counter[ServicePortName] = Counter()
        packets: Counter[ServicePortName] = Counter()
        octets: Counter[ServicePortName] = Counter()
        for server, counted in self._sockets.read_servers().items():
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
            self._clock(),
            self._settings.is_excluded,
            rejected,
            check_rejected,
        )

    def _build_desired_rules(self, context: NodeContext) -> RuleSet:
        return build_desired_rules(self._desired, context, random_fully=self._random_fully)


def describe_missing(schedulers: Schedulers) -> list[Condition]:
    """Return the condition that the kernel lacks schedulers which Services request; empty when it has all."""
    missing = schedulers.missing
    if not missing:
        return []
    message = f"the kernel lacks IPVS schedulers that Services request: {', '.join(missing)}; using {schedulers.default}"
    remedy = f"modprobe -a {' '.join(f'ip_vs_{name}' for name in missing)}"
    return [Condition.false("KernelFeatures", "SchedulerMissing", message, remedy)]


@dataclass
class SyncRun:
    """One sync: brings the kernel from `state`, which every step updates, to `desired`; all methods raise KernelError.

    `rejected` are service ports that are left out already. `check_rejected` raises when there are too many of them.
    """

    sockets: Sockets
    iptables: RuleTool
    desired: Ledger
    state: KernelState
    draining: Draining
    now: float
    excluded: Excluded
    rejected: dict[ServicePortName, str]
    check_rejected: Callable[[Mapping[ServicePortName, str]], None]
    corrected: list[Difference] = field(default_factory=list)
    conditions: dict[str, Condition] = field(default_factory=dict)
    """By type."""
    _failed: set[VirtualKey] = field(default_factory=set)
    """Virtual servers that were rejected, themselves or some of their real servers."""
    _changed: set[VirtualKey] = field(default_factory=set)
    """Virtual servers that were changed externally."""
    _reread: set[VirtualKey] = field(default_factory=set)
    _written: Counter[str] = field(default_factory=Counter)
    _batch_bytes: int = 0

    def take_over(self) -> None:
        """Create the dummy device and the sets, and read what the kernel holds."""
        self.sockets.make_containers()
        self.state = self.sockets.read(self.desired)
        tables = {table: self._read_chains(table) for table in (NAT, FILTER)}
        self.state.missing_jumps = tuple(jump for jump in JUMPS if not jump.is_in(tables[jump.table]))
        self.state.iptables_mode_serves = any(map(names.is_service_chain, tables[NAT]))

    def _read_chains(self, table: str) -> Chains:
        """Return what the table holds; nothing where it cannot be read: a jump that is added twice does no harm."""
        try:
            return parse_chains(self.iptables.save(table))
        except Incompatible as error:
            self._add_condition(describe_unreadable(error))
            return {}

    def apply(self, touched: Keys, rules: RuleSet) -> None:
        """Take the steps for the touched rows, and again for virtual servers that were changed externally."""
        for step in plan_steps(self.desired, self.state, touched, rules, self.excluded):
            if isinstance(step, DrainReals | RemoveReals | RemoveServers | DeleteEntries):
                self._retry_changed(rules)
            if isinstance(step, WriteRules):
                self._write_rules(step)
            elif isinstance(step, DrainReals):
                self.drain(step)
            else:
                self._send(step)
        self._retry_changed(rules)

    def _retry_changed(self, rules: RuleSet) -> None:
        """Read virtual servers that were changed externally and try again: rejections must be known before any removal."""
        keys = self._changed - self._reread
        if keys:
            self._reread |= keys
            for key in keys:
                self.sockets.reread(key, self.state)
            self.apply({SERVER: keys}, rules)

    def _write_rules(self, step: WriteRules) -> None:
        text = step.rules.render_restore(step.jumps)
        self.iptables.restore(text)
        state = self.state
        state.rules, state.missing_jumps, state.iptables_mode_serves = step.rules, (), False
        state.references = {name: header.references for name, header in self.sockets.read_sets().items()}
        self._batch_bytes += len(text)
        for table, lines in step.rules.list_tables():
            self._written[table] += len(lines)

    def drain(self, step: DrainReals) -> None:
        """Remove real servers without connections; the others get no new ones."""
        busy = {item.server for item in step.items if item.server.protocol == TCP}
        present = self.sockets.read_connections(busy)
        for part in self.draining.plan_steps(step.items, present, self.now):
            self._send(part)

    def _send(self, step: NetlinkStep[Any]) -> None:
        errors = self.sockets.send(step)
        step.apply_to(self.state, errors)
        self._record(step, errors)
        if not errors:
            return
        match step:
            case AddEntries(kind=kind):
                for key, error in errors.items():
                    self.rejected.update(dict.fromkeys(self.desired.owners(kind, key), str(error)))
            case AddServers():
                self._on_servers_rejected({server.key: error for server, error in errors.items()})
            case AddReals():
                self._on_servers_rejected({item.server: error for item, error in errors.items()})
            case _:
                raise next(iter(errors.values()))
        self.check_rejected(self.rejected)

    def _record(self, step: NetlinkStep[Any], rejected: Mapping[Any, KernelError]) -> None:
        accepted = [item for item in step.items if item not in rejected]
        self._written[step.counts_as] += len(accepted)
        if isinstance(step, RemoveServers):
            self.corrected += [Difference(f"virtual server {key}", "", PRESENT) for key in accepted]
        elif isinstance(step, Unbind):
            what = f"address on {IPVS_DEVICE}"
            self.corrected += [Difference(what, "", address_text(address)) for address in accepted]
        elif isinstance(step, Bind):
            # Before it is routed locally, packets leave the node, and their flows stay untranslated.
            unrouted = [address_text(address) for address in self.sockets.find_unrouted(accepted)]
            if unrouted:
                message = f"not routed locally on {IPVS_DEVICE}: {', '.join(unrouted)}"
                self._add_condition(
                    Condition.false("AddressesRouted", "NoLocalRoute", message, "check `ip rule`")
                )

    def _on_servers_rejected(self, errors: Mapping[VirtualKey, KernelError]) -> None:
        """Handle rejected virtual servers or real servers of them: they were changed externally, or are not accepted."""
        for key, error in errors.items():
            if key in self._failed:
                continue
            if error.errno in _CHANGED_EXTERNALLY and key not in self._reread:
                self._changed.add(key)
            else:
                self._failed.add(key)
                self.rejected[self.desired.rows(SERVER)[key].owner] = str(error)

    def _add_condition(self, condition: Condition) -> None:
        self.conditions[condition.type] = condition

    @property
    def has_changed_servers(self) -> bool:
        return self._written[AddServers.counts_as] > 0

    def report(self, rules: RuleSet, conditions: Sequence[Condition], *, full: bool) -> SyncReport:
        return SyncReport(
            full=full,
            rejected=self.rejected,
            rules_total={table: len(lines) for table, lines in rules.list_tables()},
            rules_last={name: count for name, count in self._written.items() if count},
            batch_bytes=self._batch_bytes,
            corrected=self.corrected if full else (),
            conditions=conditions,
        )
