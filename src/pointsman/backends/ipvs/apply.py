"""The ipvs backend: plans in, virtual servers, ipsets, addresses and rules in the kernel out.

The kernel is read once and then owned: a sync compares only what its changes touched with the memory of the
kernel's state and sends the difference over netlink; the iptables program runs only when a rule changes. What to
send, and in which order, is decided in `change`.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any

import msgspec

from pointsman.backends.contract import (
    Difference,
    SyncReport,
    SyncRequest,
    Traffic,
    abort_if_mostly_rejected,
    compile_each,
    plans_to_compare,
)
from pointsman.backends.ipvs.batch import (
    AddEntries,
    AddReals,
    AddServers,
    Bind,
    DeleteEntries,
    NetlinkStep,
    RemoveReals,
    RemoveServers,
    RetireReals,
    Unbind,
    WriteRules,
)
from pointsman.backends.ipvs.change import everything, steps_towards
from pointsman.backends.ipvs.comparison import IpvsComparison
from pointsman.backends.ipvs.compile import Compiler
from pointsman.backends.ipvs.desired import Desired, Touched
from pointsman.backends.ipvs.drain import TCP, Draining
from pointsman.backends.ipvs.drift import Watch
from pointsman.backends.ipvs.known import Known
from pointsman.backends.ipvs.rules import FILTER, JUMPS, NAT, RuleSet
from pointsman.backends.ipvs.schedulers import Schedulers
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.backends.netfilter import names, saved
from pointsman.backends.netfilter.runners import RuleTool
from pointsman.backends.netfilter.sleeping import wake
from pointsman.errors import KernelError
from pointsman.kernel.iptables import Incompatible
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, VirtualKey
from pointsman.kernel.nft_ruleset import LEGACY, Ruleset
from pointsman.model.addresses import Cidr, Family, address_text
from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName

DRAIN_SECONDS = 24 * 3600.0
_DRAIN_CHECK_SECONDS = 60.0
_SURPRISES = frozenset((errno.EEXIST, errno.ESRCH, errno.ENOENT))
"""Refusals which say that the kernel does not hold what we last saw there."""


class IpvsSettings(msgspec.Struct, frozen=True):
    """The `ipvs` section of the configuration, as far as a sync needs it."""

    scheduler: str = "rr"
    exclude_cidrs: tuple[Cidr, ...] = ()
    """Virtual servers in these ranges are never removed."""
    drain_seconds: float = DRAIN_SECONDS
    """After this long a real server is removed although connections are left."""


class IpvsBackend:
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
        ruleset: Ruleset = LEGACY,
    ) -> None:
        self.family = family
        self._iptables = iptables
        self._settings = settings
        self._random_fully = random_fully
        self._clock = clock
        self._ruleset = ruleset
        self._sockets = open_sockets(family)
        self._schedulers = Schedulers(settings.scheduler, self._sockets.has_scheduler)
        self._desired = Desired()
        self._known = Known()
        self._draining = Draining(settings.drain_seconds)
        self._drain_check_due = 0.0
        self._watch = Watch()
        self._rejected: dict[ServicePortName, str] = {}
        self._context: NodeContext | None = None
        """Of the last sync; None while what the kernel holds is in doubt."""

    # --- the contract of a backend ---

    def sync(self, request: SyncRequest) -> SyncReport:
        """Bring the kernel to the desired state; see `backends.contract.Backend`."""
        full = request.full or request.context != self._context
        self._context = None
        changes = request.plans if full else request.changed
        still = {} if full else {name: why for name, why in self._rejected.items() if name not in changes}
        progress = _Progress(len(request.plans), still, full=full)
        plans = {name: plan for name, plan in changes.items() if plan is not None}
        compiler = Compiler(request.context, self._schedulers)
        fragments = compile_each(plans, compiler.fragment, progress.rejected)
        abort_if_mostly_rejected(progress.rejected, progress.total, self._rejected)
        progress.notes += [fragment.note for fragment in fragments.values() if fragment.note]
        if full:
            self._desired = Desired(fragments)
            self._take_over(progress)
            touched = everything(self._desired, self._known)
        else:
            touched = self._desired.update({name: fragments.get(name) for name in changes})
        rules = self._desired.rules(request.context, random_fully=self._random_fully)
        self._run(touched, rules, progress)
        if progress.full:
            progress.notes += wake(self._ruleset)
        self._draining.retain(self._known.weights)
        self._rejected = progress.rejected
        self._context = request.context
        return progress.report(rules)

    def drift(self) -> Difference | None:
        """Compare names, settings and counts with the kernel; draining servers are looked after as well."""
        self.tend()
        if self._context is None:
            return None
        return self._watch.drift(self._known, self._sockets, self._excluded)

    def comparison(
        self, request: SyncRequest, only: Collection[ServicePortName] | None = None
    ) -> IpvsComparison:
        context, random_fully = request.context, self._random_fully
        return IpvsComparison(
            context,
            plans_to_compare(request.plans, only, ()),
            rules=None if only is None else self._desired.rules(context, random_fully=random_fully),
            save=self._iptables.save,
            scheduler=self._schedulers.default,
            known_schedulers=self._schedulers.known,
            random_fully=random_fully,
            draining=frozenset(self._draining.reals()),
            excluded=self._excluded,
            ruleset=self._ruleset,
        )

    def traffic(self) -> Traffic:
        """Connections, packets and bytes per service port, over all its addresses, since their making."""
        connections: Counter[ServicePortName] = Counter()
        packets: Counter[ServicePortName] = Counter()
        octets: Counter[ServicePortName] = Counter()
        for server, counted in self._sockets.servers().items():
            owner = self._desired.owners.get(server.key)
            if owner is not None:
                connections[owner] += counted.connections
                packets[owner] += counted.packets_in + counted.packets_out
                octets[owner] += counted.bytes_in + counted.bytes_out
        return Traffic(connections=connections, packets=packets, bytes=octets)

    def close(self) -> None:
        """Release sockets; kernel state stays."""
        self._sockets.close()

    # --- beyond the contract ---

    def tend(self) -> int:
        """Remove drained real servers whose connections ended; cheap, at most once a minute; how many went."""
        before, now = self.draining, self._clock()
        if before and now >= self._drain_check_due:
            self._drain_check_due = now + _DRAIN_CHECK_SECONDS
            self._retire(RetireReals(self._draining.reals()), _Progress(len(self._desired.fragments)))
        return before - self.draining

    @property
    def draining(self) -> int:
        """How many real servers wait for their last connections."""
        return len(self._draining)

    # --- a sync ---

    def _take_over(self, progress: _Progress) -> None:
        """Make what everything else is put into, and read what is there."""
        self._sockets.make_containers()
        self._known = self._sockets.read(self._desired.servers)
        outlines = {table: self._outline(table, progress) for table in (NAT, FILTER)}
        self._known.missing_jumps = tuple(jump for jump in JUMPS if not jump.is_in(outlines[jump.table]))
        self._known.iptables_mode_serves = any(map(names.is_service_chain, outlines[NAT].chains))

    def _outline(self, table: str, progress: _Progress) -> saved.TableOutline:
        """What the table holds; where that cannot be read, jumps go in once more, which does no harm."""
        try:
            return saved.outline(self._iptables.save(table))
        except Incompatible as error:
            progress.notes.append(str(error))
            return saved.outline(b"")

    def _run(self, touched: Touched, rules: RuleSet, progress: _Progress) -> None:
        """Take the steps for what was touched, and again for what turned out to be other than we knew."""
        for step in steps_towards(self._desired, self._known, touched, rules, self._excluded):
            match step:
                case WriteRules():
                    self._write_rules(step, progress)
                case RetireReals():
                    self._look_again(rules, progress)
                    self._retire(step, progress)
                case RemoveReals() | RemoveServers() | Unbind() | DeleteEntries():
                    self._look_again(rules, progress)
                    self._send(step, progress)
                case _:
                    self._send(step, progress)
        self._look_again(rules, progress)

    def _look_again(self, rules: RuleSet, progress: _Progress) -> None:
        """Only then is known what is refused, and that must be known before anything is removed."""
        keys = progress.surprising - progress.read_again
        if keys:
            progress.read_again |= keys
            for key in keys:
                self._sockets.read_again(key, self._known)
            self._run(Touched(keys), rules, progress)

    def _write_rules(self, step: WriteRules, progress: _Progress) -> None:
        text = step.rules.restore_text(step.jumps)
        self._iptables.restore(text)
        known = self._known
        known.rules, known.missing_jumps, known.iptables_mode_serves = step.rules, (), False
        known.references = {name: header.references for name, header in self._sockets.sets().items()}
        progress.batch_bytes += len(text)
        for table, lines in step.rules.tables():
            progress.written[table] += len(lines)

    def _retire(self, step: RetireReals, progress: _Progress) -> None:
        """Remove real servers that nobody is connected to; the others stop getting new connections."""
        busy = {item.server for item in step.items if item.server.protocol == TCP}
        present = self._sockets.connections(busy)
        for part in self._draining.steps(step.items, present, self._clock()):
            self._send(part, progress)

    def _send(self, step: NetlinkStep[Any], progress: _Progress) -> None:
        refused = self._sockets.send(step)
        step.adopt(self._known, refused)
        if isinstance(step, AddServers | RemoveServers):
            self._watch.servers_changed()
        progress.took(step, refused)
        if isinstance(step, Bind):
            self._await_addresses([address for address in step.items if address not in refused], progress)
        if not refused:
            return
        match step:
            case AddEntries() | Bind():
                for item, owners in self._desired.owners_of(refused).items():
                    progress.rejected.update(dict.fromkeys(owners, str(refused[item])))
            case AddServers():
                self._servers_refused({server.key: error for server, error in refused.items()}, progress)
            case AddReals():
                self._servers_refused({item.server: error for item, error in refused.items()}, progress)
            case _:
                raise next(iter(refused.values()))
        abort_if_mostly_rejected(progress.rejected, progress.total, self._rejected)

    def _await_addresses(self, addresses: Sequence[bytes], progress: _Progress) -> None:
        """Until they are in force, packets to them leave the node, and their flows stay untranslated."""
        late = map(address_text, self._sockets.not_in_force(addresses))
        progress.notes += [f"{address} on {IPVS_DEVICE}: its packets are led elsewhere" for address in late]

    def _servers_refused(self, refused: Mapping[VirtualKey, KernelError], progress: _Progress) -> None:
        """Virtual servers, or real ones of them: somebody else was there since we looked, or it cannot be had."""
        for key, error in refused.items():
            if key in progress.refused:
                continue
            if error.errno in _SURPRISES and key not in progress.read_again:
                progress.surprising.add(key)
            else:
                progress.refused.add(key)
                progress.rejected[self._desired.owners[key]] = str(error)

    def _excluded(self, key: VirtualKey) -> bool:
        return any(cidr.contains(key.address) for cidr in self._settings.exclude_cidrs)


class _Progress:
    """What a sync has done so far."""

    def __init__(
        self, total: int, rejected: Mapping[ServicePortName, str] = {}, *, full: bool = False
    ) -> None:
        """`total` counts all service ports, `rejected` names those that an earlier sync could not serve."""
        self.full = full
        self.total = total
        self.rejected = dict(rejected)
        self.refused: set[VirtualKey] = set()
        """Virtual servers, or some of their real servers."""
        self.surprising: set[VirtualKey] = set()
        """Virtual servers that somebody else has changed."""
        self.read_again: set[VirtualKey] = set()
        self.written: Counter[str] = Counter()
        self.notes: list[str] = []
        self.batch_bytes = 0

    def took(self, step: NetlinkStep[Any], refused: Container[object]) -> None:
        self.written[step.counts_as] += sum(item not in refused for item in step.items)
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
