"""The nftables backend: the only module of this package that changes the kernel."""

from __future__ import annotations

import contextlib
import errno
import gc
from collections.abc import Callable, Collection, Iterator, KeysView, Mapping, Sequence
from functools import partial
from typing import TypeVar

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
from pointsman.backends.nftables.batch import Batch
from pointsman.backends.nftables.change import Change
from pointsman.backends.nftables.check import DriftCheck, can_be_filled, compare_kernel, format_table
from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.counters import ConnectionTotals
from pointsman.backends.nftables.fields import FamilyTraits, find_traits
from pointsman.backends.nftables.fragment import Fragment
from pointsman.backends.nftables.preflight import OptionalFeatures, lacks_hash, lacks_timeouts
from pointsman.backends.nftables.reader import KernelTable
from pointsman.backends.nftables.table_socket import (
    TableSocket,
    build_rejection_error,
    find_external_object,
    find_rejected_service_ports,
)
from pointsman.errors import KernelError, Rejected
from pointsman.kernel.nfnl import BatchRejected, CommitLog, Fault, NftablesSocket
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

_MAX_REJECTION_ROUNDS = 5
_T = TypeVar("_T")

Fragments = dict[ServicePortName, Fragment]


class NftablesBackend(Backend):
    """nftables mode for one IP family. Implements `pointsman.backends.contract.Backend`.

    Belongs to one thread. `service_metrics` puts counters on the elements. The kernel socket is opened in the network
    namespace of the first call that needs it.
    """

    def __init__(
        self,
        family: Family,
        *,
        service_metrics: bool = False,
        commits: CommitLog | None = None,
        lacks_hash: Callable[[NftablesSocket, FamilyTraits], bool] = lacks_hash,
        lacks_timeouts: Callable[[NftablesSocket, FamilyTraits], bool] = lacks_timeouts,
    ) -> None:
        self.family = family
        self._counters = service_metrics
        self._contents: Contents | None = None
        self._rejected: dict[ServicePortName, str] = {}
        log = commits or CommitLog()
        self._kernel = TableSocket(find_traits(family), log)
        self._drift_check = DriftCheck(log)
        traits = find_traits(family)
        self._features = OptionalFeatures(
            lambda: lacks_hash(self._kernel.get_socket(), traits),
            lambda: lacks_timeouts(self._kernel.get_socket(), traits),
        )
        self._totals = ConnectionTotals()

    # --- the contract ---------------------------------------------------------------------------------------

    def sync(self, request: SyncRequest) -> SyncReport:
        """Bring the kernel to the desired state; raises KernelError and changes nothing on failure."""
        contents = self._contents
        if request.full or contents is None or contents.context != request.context:
            return self._full_sync(request)
        return self._incremental_sync(contents, request)

    def find_drift(self) -> Difference | None:
        """Check for external changes, by the ruleset generation and the definitions of the table."""
        if self._contents is None:
            return None
        return self._drift_check.find_drift(
            self._contents, self._kernel.get_socket(), self._kernel.open_reader()
        )

    @property
    def external_changes(self) -> int:
        return self._drift_check.external_changes

    def prepare_comparison(
        self, request: SyncRequest, only: Collection[ServicePortName] | None = None
    ) -> Comparison:
        compared = plans_to_compare(request.plans, only, self._rejected)
        compare = partial(
            compare_kernel,
            request.context,
            {name: self._features.remove_unsupported(plan) for name, plan in compared.items()},
            dict(self._contents.fragments) if self._contents else {},
            counters=self._counters,
            complete=only is None,
        )
        return Comparison(compare)

    def count_traffic(self) -> Traffic:
        """Return connections per service port and endpoint since the first sync; empty without service metrics."""
        if self._contents is not None and self._counters:
            self._totals.add(self._contents, self._kernel.open_reader())
        return self._totals.get()

    def close(self) -> None:
        self._kernel.close()

    # --- syncing --------------------------------------------------------------------------------------------

    def _full_sync(self, request: SyncRequest, found: Difference | None = None) -> SyncReport:
        with contextlib.suppress(KernelError):
            self.count_traffic()
        generation = self._kernel.get_socket().read_generation()
        table = self._kernel.open_reader().read_table()
        self._features.check(request.plans, again=True)
        rejected: dict[ServicePortName, str] = {}
        with _pause_gc():
            fragments = self._compile(request, request.plans, self._contents, rejected)
            abort_if_mostly_rejected(rejected, len(request.plans), self._rejected)
            contents, batch, size = self._load(request, fragments, table, rejected)
        corrected: list[Difference] = []
        if table is not None and table.head.comment != contents.comment:
            have = table.head.comment or "no comment"
            corrected.append(Difference(format_table(contents), contents.comment, have))
        self._contents = contents
        self._rejected = rejected
        self._totals.reset_counters()
        self._drift_check.on_loaded(generation + 1, self._kernel.open_reader())
        return self._report(contents, batch, size, full=True, drift=found, corrected=corrected)

    def _load(
        self,
        request: SyncRequest,
        fragments: Fragments,
        table: KernelTable | None,
        rejected: dict[ServicePortName, str],
    ) -> tuple[Contents, Batch, int]:
        """Commit everything; move what the kernel rejects from `fragments` to `rejected`."""
        for _ in range(_MAX_REJECTION_ROUNDS):
            contents = Contents(request.context, counters=self._counters)
            contents.load(fragments)
            for batch in _build_full_batches(contents, table):
                try:
                    return contents, batch, self._kernel.commit(batch)
                except BatchRejected as error:
                    refusal = error
            # A new table rejects it too, so the contents are wrong and not an external object in the table.
            faults = self._kernel.check(batch)
            found = find_rejected_service_ports(batch, faults, fragments)
            if not found:
                raise build_rejection_error(batch, faults, refusal.errno) from refusal
            self._reject(found, fragments, rejected, len(request.plans))
        raise Rejected("the kernel keeps rejecting parts of the table", errno.EINVAL)

    def _reject(
        self,
        found: Mapping[ServicePortName, str],
        fragments: dict[ServicePortName, _T],
        rejected: dict[ServicePortName, str],
        total: int,
    ) -> None:
        """Move service ports from `fragments` to `rejected`; raises when these are most of them."""
        rejected.update(found)
        abort_if_mostly_rejected(rejected, total, self._rejected)
        for name in found:
            del fragments[name]

    def _incremental_sync(self, contents: Contents, request: SyncRequest) -> SyncReport:
        rejected = {name: why for name, why in self._rejected.items() if name not in request.changed}
        self._features.check(request.changed)
        present = {name: plan for name, plan in request.changed.items() if plan is not None}
        updates: dict[ServicePortName, Fragment | None] = dict.fromkeys(request.changed)
        updates |= self._compile(request, present, contents, rejected)
        abort_if_mostly_rejected(rejected, len(request.plans), self._rejected)
        for _ in range(_MAX_REJECTION_ROUNDS):
            change = Change(contents, updates)
            try:
                size = self._kernel.commit(change.batch) if change.batch else 0
            except BatchRejected:
                drift = self._drift_check.find_changed_definition(contents, self._kernel.open_reader())
                if drift is not None:
                    return self._full_sync(request, drift)
                new = {name: fragment for name, fragment in updates.items() if fragment is not None}
                faults = self._kernel.check(change.batch)
                found = find_rejected_service_ports(change.batch, faults, new)
                if not found or found.keys() - self._rejected.keys():
                    return self._sync_after_rejection(request, change.batch, faults, found.keys())
                self._reject(found, updates, rejected, len(request.plans))
                continue
            change.apply()
            self._rejected = rejected
            return self._report(contents, change.batch, size, full=False)
        raise Rejected("the kernel keeps rejecting parts of the change", errno.EINVAL)

    def _sync_after_rejection(
        self,
        request: SyncRequest,
        batch: Batch,
        faults: Sequence[Fault],
        suspected: KeysView[ServicePortName],
    ) -> SyncReport:
        """Load everything after the kernel rejected a change of service ports that it did not reject before.

        An external element that no definition shows may be in the way: a full load removes it, or rejects the same
        service ports. Those count as rejected until the next full load, so that a bad Service costs one full load and
        not one at each of its changes.
        """
        report = self._full_sync(request)
        if suspected and suspected <= report.rejected.keys():
            return report
        return msgspec.structs.replace(report, drift=find_external_object(batch, faults))

    def _report(
        self,
        contents: Contents,
        batch: Batch,
        size: int,
        *,
        full: bool,
        drift: Difference | None = None,
        corrected: Sequence[Difference] = (),
    ) -> SyncReport:
        return SyncReport(
            full=full,
            rejected=dict(self._rejected),
            rules_total=contents.count_elements(),
            rules_last=batch.count_elements(),
            batch_bytes=size,
            drift=drift,
            corrected=corrected,
            conditions=self._features.find_conditions(),
        )

    def _compile(
        self,
        request: SyncRequest,
        plans: Mapping[ServicePortName, ServicePlan],
        committed: Contents | None,
        rejected: dict[ServicePortName, str],
    ) -> Fragments:
        """Compile plans, but use the committed fragment of an unchanged plan: hash tables take long to fill."""
        is_current = committed is not None and committed.context == request.context
        held = committed.fragments if committed is not None and is_current else {}

        def compile_one(plan: ServicePlan) -> Fragment:
            wanted, previous = self._features.remove_unsupported(plan), held.get(plan.name)
            if previous is not None and previous.plan == wanted:
                return previous
            return compile_fragment(wanted, request.context, previous, counters=self._counters)

        return compile_each(plans, compile_one, rejected)


@contextlib.contextmanager
def _pause_gc() -> Iterator[None]:
    """Pause garbage collection: a full load makes many tuples and no cycles, and collections take a third of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _build_full_batches(contents: Contents, table: KernelTable | None) -> Iterator[Batch]:
    """Yield the batches that load everything, best first: in place, or replacing the table."""
    if table is None:
        yield contents.build_full_batch(replace=False, update=False)
        return
    if can_be_filled(contents, table):
        chains = {chain.name for chain in contents.list_chains()}
        sets = {spec.name for spec in contents.list_sets()}
        timeouts = {timeout.name for timeout in contents.timeouts}
        yield contents.build_full_batch(
            replace=False,
            update=True,
            stale_chains=sorted(table.chains.keys() - chains),
            stale_sets=sorted(table.sets.keys() - sets),
            stale_timeouts=sorted(table.timeouts.keys() - timeouts),
        )
    yield contents.build_full_batch(replace=True, update=False)
