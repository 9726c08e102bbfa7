"""iptables mode of one IP family: desired state in, restore batches out, memory committed after the kernel accepted.

A full sync reads the tables once (iptables-save), so it knows which jumps are missing and which chains nobody needs
any more, and writes everything that is not yet as it should be in one restore. A partial sync reads nothing and writes the chains of changed service
ports plus those shared chains whose lines differ. A restore that fails on a line of one service port is repeated
without that service port; any other failure leaves the state in doubt, and the next sync is a full one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping

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
from pointsman.backends.iptables import drift, static
from pointsman.backends.iptables.batch import (
    EMPTY,
    Batch,
    Change,
    full_batch,
    partial_batch,
    rules_written,
)
from pointsman.backends.iptables.comparison import IptablesComparison, LastLook
from pointsman.backends.iptables.fragment import Fragment
from pointsman.backends.iptables.isolate import refused_among, remove_leftovers
from pointsman.backends.iptables.memory import Memory, comments_wanted
from pointsman.backends.iptables.present import present_in
from pointsman.backends.iptables.settings import (
    INVALID_COUNTER,
    LOCALHOST_COUNTER,
    KernelFacts,
    Settings,
    settings_of,
)
from pointsman.backends.netfilter import names, saved
from pointsman.backends.netfilter.jumps import Jump
from pointsman.backends.netfilter.sleeping import sleeping, wake
from pointsman.conditions import Condition
from pointsman.errors import KernelError
from pointsman.kernel import nfacct
from pointsman.kernel.iptables import FILTER, NAT, Incompatible, Iptables, RestoreRejected
from pointsman.kernel.nft_ruleset import LEGACY, Ruleset
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family
from pointsman.model.service import ServicePortName

ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
TCP_BE_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"

_COUNTERS = (INVALID_COUNTER, LOCALHOST_COUNTER)
_ISOLATION_LIMIT = 20
"""More refused service ports than this in one sync point at the host, not at the services."""


class IptablesBackend:
    """See the module's docstring; the contract is in backends/contract.py."""

    def __init__(
        self,
        family: Family,
        *,
        runner: Iptables,
        sysctls: Sysctls,
        localhost_node_ports: bool = True,
        ensure_counter: Callable[[str], None] = nfacct.ensure,
        has_counter: Callable[[str], bool] = nfacct.exists,
        ruleset: Ruleset = LEGACY,
    ) -> None:
        self.family = family
        self._runner = runner
        self._sysctls = sysctls
        self._localhost_node_ports = localhost_node_ports
        self._ensure_counter = ensure_counter
        self._has_counter = has_counter
        self._ruleset = ruleset
        self._last_look = LastLook()
        self._settings: Settings | None = None
        self._memory = Memory()
        self._rejected: dict[ServicePortName, str] = {}
        self._conditions: tuple[Condition, ...] = ()
        self._in_doubt = True

    def sync(self, request: SyncRequest) -> SyncReport:
        settings = self._settings
        full = request.full or self._in_doubt
        self._in_doubt = True
        if full or settings is None or settings.context != request.context:
            report = self._sync_full(request)
        else:
            report = self._sync_partial(request, settings)
        self._in_doubt = False
        return report

    def drift(self) -> Difference | None:
        if self._in_doubt:
            return None
        with contextlib.suppress(KernelError):
            for found in sleeping(self._ruleset):
                return found
        return drift.flush_report(self._runner)

    def comparison(
        self, request: SyncRequest, only: Collection[ServicePortName] | None = None
    ) -> IptablesComparison:
        settings, memory = self._settings, self._memory.copied()
        if settings is None or settings.context != request.context:
            counters = frozenset(filter(self._has_counter, _COUNTERS))
            settings, memory = self._settings_with(request, counters), Memory()
        return IptablesComparison(
            self._runner,
            self._ruleset,
            settings,
            memory,
            request.plans,
            plans_to_compare(request.plans, only, self._rejected),
            last=self._last_look if only is None else None,
        )

    def traffic(self) -> Traffic:
        """Iptables rules are not counted per service."""
        return Traffic()

    def close(self) -> None:
        """Nothing is held open."""

    # full

    def _sync_full(self, request: SyncRequest) -> SyncReport:
        settings = self._prepare(request)
        if settings != self._settings:
            self._memory = Memory()
            self._settings = settings
        comments = comments_wanted(request.plans.values())
        rejected: dict[ServicePortName, str] = {}
        fragments = compile_each(
            request.plans, lambda plan: self._memory.compiled(plan, settings, comments), rejected
        )
        abort_if_mostly_rejected(rejected, len(request.plans), self._rejected)
        notes: list[str] = []

        def batch() -> Batch:
            for name in rejected:
                fragments.pop(name, None)
            return self._full_batch(settings, fragments, notes)

        text = self._restore(batch, dict(fragments), rejected, len(request.plans))
        notes += wake(self._ruleset)
        self._memory.replace(fragments, request.plans, comments)
        self._rejected = rejected
        if settings.localhost_node_ports:
            found = self._sysctls.ensure(ROUTE_LOCALNET, 1)
            self._conditions = () if found is None else (_without_localhost(found),)
        return self._report(settings, True, text, notes)

    def _prepare(self, request: SyncRequest) -> Settings:
        """Make the counters where the kernel can, and find out what rules are to be like here."""
        counters = set()
        for name in _COUNTERS:
            with contextlib.suppress(KernelError):
                self._ensure_counter(name)
                counters.add(name)
        return self._settings_with(request, frozenset(counters))

    def _settings_with(self, request: SyncRequest, counters: frozenset[str]) -> Settings:
        facts = KernelFacts(
            counters=counters,
            tcp_be_liberal=bool(self._sysctls.read_int(TCP_BE_LIBERAL)),
            random_fully=self._runner.features.random_fully,
        )
        return settings_of(request.context, facts, localhost_node_ports=self._localhost_node_ports)

    def _full_batch(
        self, settings: Settings, fragments: Mapping[ServicePortName, Fragment], notes: list[str]
    ) -> Batch:
        notes.clear()
        try:
            texts = {table: self._runner.save(table) for table in (FILTER, NAT)}
        except KernelError as error:
            notes.append(f"stale chains are not deleted: {error}")
            return self._blind_batch(settings, fragments)
        held = {table: saved.outline(text) for table, text in texts.items()}
        remove_leftovers(self._runner, {table: outline.chains for table, outline in held.items()})
        blocks = {table: saved.blocks(text) for table, text in texts.items()}
        stale = set(filter(names.is_service_chain, held[NAT].chains))
        if stale:
            stale.difference_update(*(fragment.chains for fragment in fragments.values()))
        return full_batch(
            settings,
            fragments,
            missing_jumps=[jump for jump in static.JUMPS if not jump.stands_in(held[jump.table], self._ask)],
            stale=sorted(stale),
            create_kubelet_firewall=names.KUBELET_FIREWALL not in held[FILTER].chains,
            present=present_in(settings, fragments, blocks),
            over_nftables=self._runner.features.nf_tables,
        )

    def _blind_batch(self, settings: Settings, fragments: Mapping[ServicePortName, Fragment]) -> Batch:
        """Without a look at the tables, each jump is asked for and nothing is deleted."""
        known = self._runner.chain_exists(FILTER, names.KUBELET_FIREWALL)
        missing = [jump for jump in static.JUMPS if not self._is_known_to_exist(jump)]
        return full_batch(settings, fragments, missing_jumps=missing, create_kubelet_firewall=not known)

    def _is_known_to_exist(self, jump: Jump) -> bool:
        """False among rules that iptables cannot read: the jump then goes in once more, which does no harm."""
        try:
            return self._ask(jump)
        except Incompatible:
            return False

    def _ask(self, jump: Jump) -> bool:
        return self._runner.check_rule(jump.table, jump.source, jump.rule)

    # partial

    def _sync_partial(self, request: SyncRequest, settings: Settings) -> SyncReport:
        memory = self._memory
        comments = memory.comments_wanted_after(request.changed)
        rejected = {name: why for name, why in self._rejected.items() if name not in request.changed}
        present = {name: plan for name, plan in request.changed.items() if plan is not None}
        compiled = compile_each(present, lambda plan: memory.compiled(plan, settings, comments), rejected)
        abort_if_mostly_rejected(rejected, len(request.plans), self._rejected)
        after = dict(memory.fragments)

        def batch() -> Batch:
            changes: dict[ServicePortName, Change] = {}
            for name in request.changed:
                new = compiled.get(name) if name not in rejected else None
                changes[name] = (memory.fragments.get(name, EMPTY), new or EMPTY)
                if new is None:
                    after.pop(name, None)
                else:
                    after[name] = new
            return partial_batch(settings, after, changes)

        text = self._restore(batch, compiled, rejected, len(request.plans))
        memory.update(request.changed, compiled, rejected, comments)
        self._rejected = rejected
        return self._report(settings, False, text, ())

    # both

    def _restore(
        self,
        make_batch: Callable[[], Batch],
        candidates: Mapping[ServicePortName, Fragment],
        rejected: dict[ServicePortName, str],
        total: int,
    ) -> bytes:
        """Restore, leaving out service ports that are refused; fills `rejected`, returns the accepted text."""
        while True:
            batch = make_batch()
            text = batch.text
            if not text:
                return text
            try:
                self._runner.restore(text)
            except RestoreRejected as error:
                culprit = batch.owner_of(error.line)
                suspects = {name: part for name, part in candidates.items() if name not in rejected}
                found = [culprit] if culprit is not None else refused_among(self._runner, suspects)
                if not found or len(rejected) + len(found) > _ISOLATION_LIMIT:
                    raise
                rejected.update(dict.fromkeys(found, str(error)))
                abort_if_mostly_rejected(rejected, total, self._rejected)
                continue
            return text

    def _report(self, settings: Settings, full: bool, text: bytes, notes: Iterable[str]) -> SyncReport:
        totals = {
            FILTER: self._memory.filter_rules + sum(1 for _ in static.filter_rules(settings)),
            NAT: self._memory.nat_rules
            + sum(1 for _ in static.nat_rules(settings))
            + sum(1 for _ in static.node_port_jumps(settings)),
        }
        return SyncReport(
            full=full,
            rejected=dict(self._rejected),
            rules_total=totals,
            rules_last={table: rules_written(text, table) for table in totals},
            batch_bytes=len(text),
            notes=tuple(notes),
            conditions=self._conditions,
        )


def _without_localhost(found: Condition) -> Condition:
    message = f"node ports do not answer on 127.0.0.1: {found.message}"
    return msgspec.structs.replace(found, message=message)
