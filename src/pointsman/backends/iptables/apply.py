"""The iptables backend: plans in, restore batches out; fragments are committed after the kernel accepted them.

A full sync reads the tables once (iptables-save) to find missing jumps, stale chains and what is right already, and writes the
rest in one restore. A partial sync reads nothing and writes the chains of changed service ports and those shared chains whose
lines differ. A restore that fails on a line of one service port is repeated without that service port; after any other failure
the state of the tables is unknown, and the next sync is a full one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from pointsman.backends.contract import (
    Backend,
    Comparison,
    Difference,
    SyncReport,
    SyncRequest,
    abort_if_mostly_rejected,
    compile_each,
    plans_to_compare,
)
from pointsman.backends.iptables import static
from pointsman.backends.iptables.check import (
    LastMatch,
    check_canaries,
    compare_kernel,
    find_full_changes,
)
from pointsman.backends.iptables.compile import compile_plan
from pointsman.backends.iptables.fragment import (
    Batch,
    Committed,
    Fragment,
    build_batch,
    count_rules,
    find_changes,
    needs_comments,
)
from pointsman.backends.iptables.isolate import find_rejected
from pointsman.backends.iptables.static import (
    INVALID_COUNTER,
    LOCALHOST_COUNTER,
    KernelFacts,
    Settings,
    build_settings,
)
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.runners import activate_dormant, diff_dormant
from pointsman.conditions import Condition
from pointsman.errors import KernelError
from pointsman.kernel import nfacct
from pointsman.kernel.iptables import Iptables, RestoreRejected
from pointsman.kernel.nft_ruleset import NftRuleset
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
TCP_BE_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"

_COUNTERS = (INVALID_COUNTER, LOCALHOST_COUNTER)
_MAX_ISOLATED = 20
"""More rejected service ports than this in one sync point at the host, not at the services."""


class IptablesBackend(Backend):
    """iptables mode for one IP family; the contract is in backends/contract.py."""

    def __init__(
        self,
        family: Family,
        *,
        runner: Iptables,
        sysctls: Sysctls,
        localhost_node_ports: bool = True,
        ensure_counter: Callable[[str], None] = nfacct.ensure,
        has_counter: Callable[[str], bool] = nfacct.has_counter,
        ruleset: NftRuleset | None = None,
    ) -> None:
        self.family = family
        self._runner = runner
        self._sysctls = sysctls
        self._localhost_node_ports = localhost_node_ports
        self._ensure_counter = ensure_counter
        self._has_counter = has_counter
        self._ruleset = ruleset
        self._last_match = LastMatch()
        self._settings: Settings | None = None
        self._frame_rules: dict[str, int] = {}
        """Number of rules outside of the services, by table."""
        self._committed = Committed()
        self._rejected: dict[ServicePortName, str] = {}
        self._conditions: tuple[Condition, ...] = ()
        self._is_unknown = True
        """What the tables hold: the last sync failed, or there was none."""

    def sync(self, request: SyncRequest) -> SyncReport:
        known, committed = self._settings, self._committed
        full = request.full or self._is_unknown or known is None or known.context != request.context
        self._is_unknown = True
        if full or known is None:
            settings, committed = self._update_settings(request)
            changed: Mapping[ServicePortName, ServicePlan | None] = request.plans
            comments = needs_comments(request.plans.values())
        else:
            settings, changed = known, request.changed
            comments = committed.needs_comments_after(changed)
        rejected = {} if full else {name: why for name, why in self._rejected.items() if name not in changed}
        compiled = compile_each(
            {name: plan for name, plan in changed.items() if plan is not None},
            lambda plan: (
                committed.find(plan, comments=comments) or compile_plan(plan, settings, comments=comments)
            ),
            rejected,
        )
        abort_if_mostly_rejected(rejected, len(request.plans), self._rejected)
        after = {} if full else dict(committed.fragments)
        conditions: list[Condition] = []

        def make_batch() -> Batch:
            for name in changed:
                if name in compiled and name not in rejected:
                    after[name] = compiled[name]
                else:
                    after.pop(name, None)
            conditions.clear()
            if full:
                parts = find_full_changes(self._runner, settings, after, conditions)
            else:
                parts = find_changes(committed.fragments, after, changed)
            return build_batch(settings, after, parts, over_nftables=self._runner.features.nf_tables)

        text = self._restore(make_batch, compiled, rejected, len(request.plans))
        corrected: Sequence[Difference] = ()
        if full:
            corrected = activate_dormant(self._ruleset)
            self._committed = Committed(after)
            self._conditions = tuple(conditions)
            if settings.localhost_node_ports:
                self._sysctls.ensure(ROUTE_LOCALNET, 1, effect="node ports do not answer on 127.0.0.1")
        else:
            committed.update({name: after.get(name) for name in changed})
        self._rejected = rejected
        self._is_unknown = False
        return self._report(full, text, corrected)

    def find_drift(self) -> Difference | None:
        if self._is_unknown:
            return None
        with contextlib.suppress(KernelError):
            for found in diff_dormant(self._ruleset):
                return found
        return check_canaries(self._runner)

    def prepare_comparison(
        self, request: SyncRequest, only: Collection[ServicePortName] | None = None
    ) -> Comparison:
        settings, committed = self._settings, Committed(self._committed.fragments)
        if settings is None or settings.context != request.context:
            settings, committed = self._build_settings(request, self._has_counter), Committed()
        compare = partial(
            compare_kernel,
            self._runner,
            self._ruleset,
            settings,
            committed,
            request.plans,
            plans_to_compare(request.plans, only, self._rejected),
            last_match=self._last_match if only is None else None,
        )
        return Comparison(compare)

    def _update_settings(self, request: SyncRequest) -> tuple[Settings, Committed]:
        """Return what rules are made from now, and the fragments that were made from the same."""
        settings = self._build_settings(request, self._make_counter)
        if settings != self._settings:
            self._committed = Committed()
            self._settings = settings
            self._frame_rules = static.count_rules(settings)
        return settings, self._committed

    def _make_counter(self, name: str) -> bool:
        """Create a counter; return whether the kernel can."""
        with contextlib.suppress(KernelError):
            self._ensure_counter(name)
            return True
        return False

    def _build_settings(self, request: SyncRequest, has_counter: Callable[[str], bool]) -> Settings:
        facts = KernelFacts(
            counters=frozenset(filter(has_counter, _COUNTERS)),
            tcp_be_liberal=bool(self._sysctls.read_int(TCP_BE_LIBERAL)),
            random_fully=self._runner.features.random_fully,
        )
        return build_settings(request.context, facts, localhost_node_ports=self._localhost_node_ports)

    def _restore(
        self,
        make_batch: Callable[[], Batch],
        candidates: Mapping[ServicePortName, Fragment],
        rejected: dict[ServicePortName, str],
        total: int,
    ) -> bytes:
        """Restore without rejected service ports; add those to `rejected`, return the accepted text."""
        while text := (batch := make_batch()).text:
            try:
                self._runner.restore(text)
                break
            except RestoreRejected as error:
                owner = batch.find_owner(error.line)
                suspects = {name: part for name, part in candidates.items() if name not in rejected}
                found = [owner] if owner is not None else find_rejected(self._runner, suspects)
                if not found or len(rejected) + len(found) > _MAX_ISOLATED:
                    raise
                rejected.update(dict.fromkeys(found, str(error)))
                abort_if_mostly_rejected(rejected, total, self._rejected)
        return text

    def _report(self, full: bool, text: bytes, corrected: Sequence[Difference]) -> SyncReport:
        totals = {
            FILTER: self._committed.filter_rules + self._frame_rules[FILTER],
            NAT: self._committed.nat_rules + self._frame_rules[NAT],
        }
        return SyncReport(
            full=full,
            rejected=dict(self._rejected),
            rules_total=totals,
            rules_last={table: count_rules(text, table) for table in totals},
            batch_bytes=len(text),
            corrected=corrected,
            conditions=self._conditions,
        )
