"""The ipvs backend: plans in, virtual servers, ipsets, addresses and rules in the kernel out.

The kernel is read once and then owned: a sync compares only the rows that its changes touched with what the kernel is known to
hold, and sends the difference over netlink; the iptables program runs only when a rule changes. What to send, and in which
order, is decided in `steps`.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

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
from pointsman.backends.ipvs.compile import ADDRESS, SERVER, Compiler
from pointsman.backends.ipvs.drain import TCP, Draining
from pointsman.backends.ipvs.rules import JUMPS, RuleSet, desired_rules
from pointsman.backends.ipvs.schedulers import Schedulers, requested_schedulers
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.backends.ipvs.steps import (
    AddEntries,
    AddReals,
    AddServers,
    Bind,
    DeleteEntries,
    DrainReals,
    KernelState,
    NetlinkStep,
    RemoveReals,
    RemoveServers,
    Unbind,
    WriteRules,
    all_keys,
    plan_steps,
)
from pointsman.backends.ledger import Keys, Ledger
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.runners import RuleTool, activate_dormant
from pointsman.backends.netfilter.tables import Chains, parse_chains
from pointsman.errors import KernelError
from pointsman.kernel.iptables import Incompatible
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, VirtualKey
from pointsman.kernel.nft_ruleset import NftRuleset
from pointsman.model.addresses import Cidr, Family, address_text
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

DRAIN_SECONDS = 24 * 3600.0
_DRAIN_CHECK_SECONDS = 60.0
_CHANGED_EXTERNALLY = frozenset((errno.EEXIST, errno.ESRCH, errno.ENOENT))
"""Error numbers which say that the kernel does not hold what was last read."""


class IpvsSettings(msgspec.Struct, frozen=True):
    """The `ipvs` section of the configuration, as far as a sync needs it."""

    scheduler: str = "rr"
    exclude_cidrs: tuple[Cidr, ...] = ()
    """Virtual servers in these ranges are never removed."""
    drain_seconds: float = DRAIN_SECONDS
    """After this long a real server is removed although connections are left."""


class IpvsBackend(Backend):
    """ipvs mode for one IP family; see `preflight.prepare` for what must be done once before."""

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
        self._has_scheduler = {settings.scheduler: True}
        self._desired = Ledger()
        self._state = KernelState()
        self._draining = Draining(settings.drain_seconds)
        self._drain_check_due = 0.0
        self._drift_check = DriftCheck()
        self._rejected: dict[ServicePortName, str] = {}
        self._context: NodeContext | None = None
        """Of the last sync; None when it is unknown what the kernel holds."""

    # --- the contract of a backend ---

    def sync(self, request: SyncRequest) -> SyncReport:
        full = request.full or request.context != self._context
        self._context = None
        changes = request.plans if full else request.changed
        still = {} if full else {name: why for name, why in self._rejected.items() if name not in changes}
        progress = _Progress(len(request.plans), still, full=full)
        plans = {name: plan for name, plan in changes.items() if plan is not None}
        self._probe_schedulers(plans.values())
        compiler = Compiler(request.context, self._schedulers())
        fragments = compile_each(plans, compiler.compile, progress.rejected)
        abort_if_mostly_rejected(progress.rejected, progress.total, self._rejected)
        progress.notes += [fragment.note for fragment in fragments.values() if fragment.note]
        rows = {name: fragments[name].rows if name in fragments else () for name in changes}
        if full:
            self._desired = Ledger(rows)
            self._take_over(progress)
            touched = all_keys(self._desired, self._state)
        else:
            touched = self._desired.update(rows)
        rules = self._desired_rules(request.context)
        self._run(touched, rules, progress)
        if progress.full:
            progress.notes += activate_dormant(self._ruleset)
        self._draining.retain(self._state.weights)
        self._rejected = progress.rejected
        self._context = request.context
        return progress.report(rules)

    def maintain(self) -> None:
        """Remove drained real servers whose connections ended; cheap, at most once a minute."""
        if len(self._draining) and self._clock() >= self._drain_check_due:
            self._drain_check_due = self._clock() + _DRAIN_CHECK_SECONDS
            self._drain(DrainReals(self._draining.reals()), _Progress(0))

    def drift(self) -> Difference | None:
        if self._context is None:
            return None
        return self._drift_check.find(self._state, self._sockets, self._excluded)

    def comparison(self, request: SyncRequest, only: Collection[ServicePortName] | None = None) -> Comparison:
        compare = partial(
            compare_kernel,
            request.context,
            plans_to_compare(request.plans, only, ()),
            rules=None if only is None else self._desired_rules(request.context),
            save=self._iptables.save,
            schedulers=self._schedulers(),
            random_fully=self._random_fully,
            draining=frozenset(self._draining.reals()),
            excluded=self._excluded,
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

    # --- a sync ---

    def _probe_schedulers(self, plans: Iterable[ServicePlan]) -> None:
        """Ask the kernel for schedulers that are requested for the first time; raises KernelError."""
        for name in requested_schedulers(plans) - self._has_scheduler.keys():
            self._has_scheduler[name] = self._sockets.has_scheduler(name)

    def _schedulers(self) -> Schedulers:
        missing = frozenset(name for name, found in self._has_scheduler.items() if not found)
        return Schedulers(self._settings.scheduler, missing)

    def _desired_rules(self, context: NodeContext) -> RuleSet:
        return desired_rules(self._desired, context, random_fully=self._random_fully)

    def _take_over(self, progress: _Progress) -> None:
        """Create the dummy device and the sets, and read what the kernel holds."""
        self._sockets.make_containers()
        self._state = self._sockets.read(self._desired)
        tables = {table: self._saved_chains(table, progress) for table in (NAT, FILTER)}
        self._state.missing_jumps = tuple(jump for jump in JUMPS if not jump.is_in(tables[jump.table]))
        self._state.iptables_mode_serves = any(map(names.is_service_chain, tables[NAT]))

    def _saved_chains(self, table: str, progress: _Progress) -> Chains:
        """Return what the table holds; nothing where it cannot be read: a jump that is added twice does no harm."""
        try:
            return parse_chains(self._iptables.save(table))
        except Incompatible as error:
            progress.notes.append(str(error))
            return {}

    def _run(self, touched: Keys, rules: RuleSet, progress: _Progress) -> None:
        """Take the steps for the touched rows, and again for virtual servers that were changed externally."""
        for step in plan_steps(self._desired, self._state, touched, rules, self._excluded):
            match step:
                case WriteRules():
                    self._write_rules(step, progress)
                case DrainReals():
                    self._retry_changed(rules, progress)
                    self._drain(step, progress)
                case RemoveReals() | RemoveServers() | Unbind() | DeleteEntries():
                    self._retry_changed(rules, progress)
                    self._send(step, progress)
                case _:
                    self._send(step, progress)
        self._retry_changed(rules, progress)

    def _retry_changed(self, rules: RuleSet, progress: _Progress) -> None:
        """Read virtual servers that were changed externally and try again: rejections must be known before any removal."""
        keys = progress.changed - progress.reread
        if keys:
            progress.reread |= keys
            for key in keys:
                self._sockets.reread(key, self._state)
            self._run({SERVER: keys}, rules, progress)

    def _write_rules(self, step: WriteRules, progress: _Progress) -> None:
        text = step.rules.restore_text(step.jumps)
        self._iptables.restore(text)
        state = self._state
        state.rules, state.missing_jumps, state.iptables_mode_serves = step.rules, (), False
        state.references = {name: header.references for name, header in self._sockets.sets().items()}
        progress.batch_bytes += len(text)
        for table, lines in step.rules.tables():
            progress.written[table] += len(lines)

    def _drain(self, step: DrainReals, progress: _Progress) -> None:
        """Remove real servers without connections; the others get no new ones."""
        busy = {item.server for item in step.items if item.server.protocol == TCP}
        present = self._sockets.connections(busy)
        for part in self._draining.steps(step.items, present, self._clock()):
            self._send(part, progress)

    def _send(self, step: NetlinkStep[Any], progress: _Progress) -> None:
        errors = self._sockets.send(step)
        step.apply_to(self._state, errors)
        if isinstance(step, AddServers | RemoveServers):
            self._drift_check.forget_servers()
        progress.add(step, errors)
        if isinstance(step, Bind):
            self._await_routes([address for address in step.items if address not in errors], progress)
        if not errors:
            return
        match step:
            case AddEntries() | Bind():
                kind = ADDRESS if isinstance(step, Bind) else step.set_name
                for key, error in errors.items():
                    progress.rejected.update(dict.fromkeys(self._desired.owners(kind, key), str(error)))
            case AddServers():
                self._on_servers_rejected({server.key: error for server, error in errors.items()}, progress)
            case AddReals():
                self._on_servers_rejected({item.server: error for item, error in errors.items()}, progress)
            case _:
                raise next(iter(errors.values()))
        abort_if_mostly_rejected(progress.rejected, progress.total, self._rejected)

    def _await_routes(self, addresses: Sequence[bytes], progress: _Progress) -> None:
        """Wait until addresses are routed locally: before, packets leave the node, and their flows stay untranslated."""
        unrouted = map(address_text, self._sockets.unrouted(addresses))
        progress.notes += [f"{address} on {IPVS_DEVICE} is not routed locally" for address in unrouted]

    def _on_servers_rejected(self, errors: Mapping[VirtualKey, KernelError], progress: _Progress) -> None:
        """Handle rejected virtual servers or real servers of them: they were changed externally, or are not accepted."""
        for key, error in errors.items():
            if key in progress.failed:
                continue
            if error.errno in _CHANGED_EXTERNALLY and key not in progress.reread:
                progress.changed.add(key)
            else:
                progress.failed.add(key)
                progress.rejected[self._desired.rows(SERVER)[key].owner] = str(error)

    def _excluded(self, key: VirtualKey) -> bool:
        return any(cidr.contains(key.address) for cidr in self._settings.exclude_cidrs)


class _Progress:
    """What one sync has done so far."""

    def __init__(
        self, total: int, rejected: Mapping[ServicePortName, str] = {}, *, full: bool = False
    ) -> None:
        """`total` counts all service ports, `rejected` names those that an earlier sync skipped."""
        self.full = full
        self.total = total
        self.rejected = dict(rejected)
        self.failed: set[VirtualKey] = set()
        """Virtual servers, or some of their real servers."""
        self.changed: set[VirtualKey] = set()
        """Virtual servers that were changed externally."""
        self.reread: set[VirtualKey] = set()
        self.written: Counter[str] = Counter()
        self.notes: list[str] = []
        self.batch_bytes = 0

    def add(self, step: NetlinkStep[Any], rejected: Container[object]) -> None:
        self.written[step.counts_as] += sum(item not in rejected for item in step.items)
        if not self.full:
            return
        if isinstance(step, RemoveServers):
            self.notes += [f"removed virtual server {key}: no service has it" for key in step.items]
        elif isinstance(step, Unbind):
            addresses = map(address_text, step.items)
            self.notes += [
                f"removed {address} from {IPVS_DEVICE}: no service has it" for address in addresses
            ]

    def report(self, rules: RuleSet) -> SyncReport:
        return SyncReport(
            full=self.full,
            rejected=self.rejected,
            rules_total={table: len(lines) for table, lines in rules.tables()},
            rules_last={name: count for name, count in self.written.items() if count},
            batch_bytes=self.batch_bytes,
            notes=tuple(self.notes),
        )
