"""The ipvs backend: plans in, virtual servers, ipsets, addresses and rules in the kernel out.

The kernel is read once and then owned: a sync compares only what its changes touched with the memory of the
kernel's state and sends the difference over netlink; the iptables program runs only when a rule changes. Nothing
here is one transaction, so the order carries the guarantees: sets and rules first, so that no packet of a new
service is balanced unmasqueraded, then virtual servers, then addresses; removals after all additions, the other
way round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from pointsman.backends.contract import (
    Damage,
    Difference,
    Drift,
    SyncReport,
    SyncRequest,
    Traffic,
    compiled_each,
)
from pointsman.backends.ipvs import verify as verification
from pointsman.backends.ipvs.compile import Compiler, Fragment
from pointsman.backends.ipvs.desired import Desired, Touched
from pointsman.backends.ipvs.drain import Draining, Verdict
from pointsman.backends.ipvs.kernel_state import DUMMY_DEVICE, WEIGHT, KernelState
from pointsman.backends.ipvs.rules import FILTER, JUMPS, NAT, RuleSet, rule_set
from pointsman.backends.ipvs.schedulers import Schedulers
from pointsman.backends.netfilter import names, saved
from pointsman.backends.netfilter.runners import RuleTool
from pointsman.backends.netfilter.saved import TableOutline
from pointsman.kernel.ipset_objects import SetEntry
from pointsman.kernel.ipvs_objects import RealKey, RealServer, VirtualKey, VirtualServer
from pointsman.model.addresses import Cidr, Family, address_text
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

DRAIN_SECONDS = 24 * 3600.0
_DRAIN_CHECK_SECONDS = 60.0


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
    ) -> None:
        self.family = family
        self._iptables = iptables
        self._settings = settings
        self._random_fully = random_fully
        self._clock = clock
        self._kernel = KernelState(family)
        self._schedulers = Schedulers(settings.scheduler, self._kernel.has_scheduler)
        self._desired = Desired()
        self._draining = Draining(settings.drain_seconds)
        self._drain_check_due = 0.0
        self._rules: RuleSet | None = None
        self._references: dict[str, int] = {}
        self._context: NodeContext | None = None
        self._compiler: Compiler | None = None

    # --- the contract of a backend ---

    def sync(self, request: SyncRequest) -> SyncReport:
        """Bring the kernel to the desired state; see `backends.base.Backend`."""
        full = request.full or request.context != self._context or self._compiler is None
        progress = _Progress()
        touched = Touched()
        if full:
            self._take_over(request, touched, progress)
        else:
            for name, plan in request.changed.items():
                self._desired.replace(name, self._fragment(plan, progress), touched)
        # Until everything is done the state is in doubt: whatever fails below makes the next sync a full one.
        self._context = None
        self._extend_sets(touched, progress)
        outlines = self._outlines() if full else {}
        # The rules of iptables mode serve until ours replace them, so what they lead to must be there by then.
        rules_last = NAT in outlines and any(map(names.is_service_chain, outlines[NAT].chains))
        if not rules_last:
            self._write_rules(request.context, outlines, progress)
        leaving = self._extend_servers(touched, progress)
        self._bind(touched, progress)
        if rules_last:
            self._write_rules(request.context, outlines, progress)
        self._part_with(leaving, progress)
        self._shrink(touched, progress, foreign=full)
        self._context = request.context
        return progress.report(full, self._rules)

    def drift(self) -> Drift | None:
        """Compare names and counts with the kernel over netlink; draining servers are looked after as well."""
        self.tend()
        if self._context is None:
            return None
        listed = {server.key for server in self._kernel.listed_servers()}
        missing = [key for key in self._kernel.servers if key not in listed]
        if missing:
            return Drift(f"virtual server {missing[0]}", Damage.DELETED, f"{len(missing)} in all")
        foreign = [key for key in listed if key not in self._kernel.servers and not self._excluded(key)]
        if foreign:
            return Drift(f"virtual server {foreign[0]}", Damage.ADDED, f"{len(foreign)} in all")
        if self._kernel.listed_addresses() != self._kernel.addresses:
            return Drift(f"addresses of {DUMMY_DEVICE}", Damage.CHANGED)
        headers = self._kernel.listed_sets()
        for name, references in self._references.items():
            if name not in headers:
                return Drift(f"ipset {name}", Damage.DELETED)
            if headers[name].references != references:
                return Drift(f"rules that match on ipset {name}", Damage.CHANGED)
            if headers[name].elements not in (-1, len(self._kernel.entries[name])):
                return Drift(f"entries of ipset {name}", Damage.CHANGED)
        return None

    def verify(self, request: SyncRequest) -> list[Difference]:
        """Read the kernel and compare it with the desired state, without changing anything."""
        compiler = Compiler(request.context, self._schedulers.default)
        desired, touched = Desired(), Touched()
        for name, plan in request.plans.items():
            scheduler = self._schedulers.choice(plan.port.ipvs_scheduler)
            desired.replace(name, compiler.fragment(plan, scheduler.name), touched)
        found = KernelState(self.family)
        try:
            found.read(desired.servers)
        finally:
            found.close()
        rules = self._rules_for(desired, request.context)
        tables = {table: self._iptables.save(table) for table in (NAT, FILTER)}
        return [
            *verification.server_differences(desired, found, self._draining, self._excluded),
            *verification.entry_differences(desired, found),
            *verification.address_differences(desired, found),
            *verification.rule_differences(rules, tables),
        ]

    def close(self) -> None:
        """Release sockets; kernel state stays."""
        self._kernel.close()

    # --- beyond the contract ---

    def tend(self) -> int:
        """Remove drained real servers whose connections ended; cheap, at most once a minute; how many went."""
        now = self._clock()
        if not self._draining or now < self._drain_check_due:
            return 0
        self._drain_check_due = now + _DRAIN_CHECK_SECONDS
        removed: dict[VirtualKey, list[RealKey]] = {}
        for key in self._draining.servers():
            leaving, present = self._draining.leaving(key), self._kernel.real_servers(key)
            removed[key] = self._draining.verdict(key, leaving, present, now).remove
        self._kernel.remove_reals(removed)
        return sum(map(len, removed.values()))

    @property
    def draining(self) -> int:
        """How many real servers wait for their last connections."""
        return len(self._draining)

    def traffic(self) -> Traffic:
        """Connections, packets and bytes per service port, over all its addresses, since their making."""
        connections: Counter[ServicePortName] = Counter()
        packets: Counter[ServicePortName] = Counter()
        octets: Counter[ServicePortName] = Counter()
        for server, counted in self._kernel.listed_servers().items():
            owner = self._desired.owners.get(server.key)
            if owner is not None:
                connections[owner] += counted.connections
                packets[owner] += counted.packets_in + counted.packets_out
                octets[owner] += counted.bytes_in + counted.bytes_out
        return Traffic(connections=connections, packets=packets, bytes=octets)

    # --- steps of a sync ---

    def _take_over(self, request: SyncRequest, touched: Touched, progress: _Progress) -> None:
        """Compile everything and read the kernel: every object of both sides is looked at."""
        self._kernel.make_containers()
        self._compiler = Compiler(request.context, self._schedulers.default)
        self._desired = Desired()
        for name, plan in request.plans.items():
            self._desired.replace(name, self._fragment(plan, progress), touched)
        self._kernel.read(self._desired.servers)
        touched.servers.update(self._kernel.servers)
        touched.addresses.update(self._kernel.addresses)
        for set_name, entries in self._kernel.entries.items():
            touched.entries.update((set_name, entry) for entry in entries)

    def _extend_sets(self, touched: Touched, progress: _Progress) -> None:
        missing: dict[str, list[SetEntry]] = {}
        for name, entry in touched.entries:
            if (name, entry) in self._desired.entries and entry not in self._kernel.entries[name]:
                missing.setdefault(name, []).append(entry)
        for name, entries in missing.items():
            failed = self._kernel.add_entries(name, entries)
            if failed:
                reason = next(iter(failed.values()))
                owners = self._desired.owners_of([(name, entry) for entry in failed], ())
                progress.rejected.update(dict.fromkeys(owners, str(reason)))
            progress.written["ipset entries"] += len(entries) - len(failed)

    def _write_rules(
        self, context: NodeContext, outlines: Mapping[str, TableOutline], progress: _Progress
    ) -> None:
        """Load the rules when they changed, or when `outlines` show the tables of a full sync."""
        rules = self._rules_for(self._desired, context)
        if not outlines and rules == self._rules:
            return
        missing = [jump for jump in JUMPS if outlines and not jump.is_in(outlines[jump.table])]
        text = rules.restore_text(missing)
        self._iptables.restore(text)
        self._rules = rules
        self._references = {name: header.references for name, header in self._kernel.listed_sets().items()}
        progress.batch_bytes += len(text)
        for table, lines in rules.tables():
            progress.written[table] += len(lines)

    def _rules_for(self, desired: Desired, context: NodeContext) -> RuleSet:
        filled = {name for name, size in desired.set_sizes.items() if size}
        return rule_set(context, filled, desired.hidden, random_fully=self._random_fully)

    def _outlines(self) -> dict[str, TableOutline]:
        return {table: saved.outline(self._iptables.save(table)) for table in (NAT, FILTER)}

    def _extend_servers(self, touched: Touched, progress: _Progress) -> dict[VirtualKey, list[RealKey]]:
        """Add and alter servers; returns real servers that are there and not wanted any more."""
        servers: list[VirtualServer] = []
        for key in touched.servers:
            want = self._desired.servers.get(key)
            if want is not None and self._kernel.servers.get(key) != want[0]:
                servers.append(want[0])
        failed = self._kernel.put_servers(servers)
        reals: dict[VirtualKey, dict[RealKey, int]] = {}
        leaving: dict[VirtualKey, list[RealKey]] = {}
        for key in touched.servers:
            want = self._desired.servers.get(key)
            if want is None or key in failed:
                continue
            have = self._kernel.weights.get(key, {})
            missing = {real: WEIGHT for real in want[1] if have.get(real) != WEIGHT}
            if missing:
                reals[key] = missing
            for real in missing:
                self._draining.forget(key, real)
            surplus = have.keys() - set(want[1])
            if surplus:
                leaving[key] = sorted(surplus)
        failed |= self._kernel.put_reals(reals)
        for key, error in failed.items():
            progress.rejected[self._desired.owners[key]] = str(error)
        progress.written["virtual servers"] += len(servers)
        progress.written["real servers"] += sum(map(len, reals.values()))
        return leaving

    def _part_with(self, leaving: dict[VirtualKey, list[RealKey]], progress: _Progress) -> None:
        """Remove real servers that nobody is connected to; the others stop getting new connections."""
        now = self._clock()
        removed: dict[VirtualKey, list[RealKey]] = {}
        quiesced: dict[VirtualKey, dict[RealKey, int]] = {}
        for key, reals in leaving.items():
            verdict = self._verdict(key, reals, now)
            removed[key] = verdict.remove
            if verdict.quiesce:
                quiesced[key] = dict.fromkeys(verdict.quiesce, 0)
        for error in self._kernel.put_reals(quiesced).values():
            raise error
        self._kernel.remove_reals(removed)
        progress.written["real servers"] += sum(map(len, removed.values())) + sum(map(len, quiesced.values()))

    def _verdict(self, key: VirtualKey, reals: list[RealKey], now: float) -> Verdict:
        if key.protocol == 6:
            return self._draining.verdict(key, reals, self._kernel.real_servers(key), now)
        weights = self._kernel.weights[key]
        return self._draining.verdict(key, reals, [RealServer(real, weights[real]) for real in reals], now)

    def _bind(self, touched: Touched, progress: _Progress) -> None:
        wanted = [
            a for a in touched.addresses if a in self._desired.addresses and a not in self._kernel.addresses
        ]
        failed = self._kernel.bind(wanted)
        for address, error in failed.items():
            owners = self._desired.owners_of((), (address,))
            progress.rejected.update(dict.fromkeys(owners, f"{address_text(address)}: {error}"))
        progress.written["addresses"] += len(wanted) - len(failed)

    def _shrink(self, touched: Touched, progress: _Progress, *, foreign: bool) -> None:
        """Remove what nobody wants; on a full sync that may be somebody else's, which is worth a note."""
        gone = [
            key
            for key in touched.servers
            if key in self._kernel.servers and key not in self._desired.servers and not self._excluded(key)
        ]
        self._kernel.remove_servers(gone)
        for key in gone:
            self._draining.forget(key)
        addresses = [
            a for a in touched.addresses if a in self._kernel.addresses and a not in self._desired.addresses
        ]
        self._kernel.unbind(addresses)
        stale: dict[str, list[SetEntry]] = {}
        for name, entry in touched.entries:
            if entry in self._kernel.entries[name] and (name, entry) not in self._desired.entries:
                stale.setdefault(name, []).append(entry)
        for name, entries in stale.items():
            self._kernel.delete_entries(name, entries)
        progress.written["virtual servers"] += len(gone)
        progress.written["addresses"] += len(addresses)
        progress.written["ipset entries"] += sum(map(len, stale.values()))
        if foreign:
            progress.notes += [f"removed virtual server {key}: no service has it" for key in gone]
            progress.notes += [
                f"removed {address_text(a)} from {DUMMY_DEVICE}: no service has it" for a in addresses
            ]

    def _fragment(self, plan: ServicePlan | None, progress: _Progress) -> Fragment | None:
        if plan is None or self._compiler is None:
            return None
        choice = self._schedulers.choice(plan.port.ipvs_scheduler)
        if choice.problem:
            progress.notes.append(f"{plan.name}: {choice.problem}")
        compiler = self._compiler
        made = compiled_each(
            {plan.name: plan}, lambda plan: compiler.fragment(plan, choice.name), progress.rejected
        )
        return made.get(plan.name)

    def _excluded(self, key: VirtualKey) -> bool:
        return any(cidr.contains(key.address) for cidr in self._settings.exclude_cidrs)


class _Progress:
    """What a sync has done so far."""

    def __init__(self) -> None:
        self.rejected: dict[ServicePortName, str] = {}
        self.written: Counter[str] = Counter()
        self.notes: list[str] = []
        self.batch_bytes = 0

    def report(self, full: bool, rules: RuleSet | None) -> SyncReport:
        totals = {table: len(lines) for table, lines in rules.tables()} if rules is not None else {}
        return SyncReport(
            full=full,
            rejected=self.rejected,
            rules_total=totals,
            rules_last={name: count for name, count in self.written.items() if count},
            batch_bytes=self.batch_bytes,
            notes=tuple(self.notes),
        )
