"""The nftables backend: the one place of this package that changes the kernel."""

from __future__ import annotations

import contextlib
import errno
import gc
from collections.abc import Iterator, Mapping

from pointsman.backends.contract import Difference, Drift, SyncReport, SyncRequest, Traffic, compiled_each
from pointsman.backends.nftables import drift, verify
from pointsman.backends.nftables.affinity import is_affinity_set
from pointsman.backends.nftables.batch import Batch, Culprit
from pointsman.backends.nftables.change import Change
from pointsman.backends.nftables.compile import fragment_from_plan
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.counters import ConnectionTotals
from pointsman.backends.nftables.family_traits import FamilyTraits, traits_of
from pointsman.backends.nftables.fragment import Fragment
from pointsman.backends.nftables.key_fields import SLOT_LENGTH
from pointsman.backends.nftables.loopback import LoopbackNodePorts
from pointsman.backends.nftables.reader import KernelTable, Reader
from pointsman.backends.nftables.schema import TABLE
from pointsman.errors import KernelError, Rejected
from pointsman.kernel.netlink import Message
from pointsman.kernel.nfnl import BatchRefused, Fault, NftablesSocket, nftables_message
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

_BLAME_ROUNDS = 5
_MOMENTARY = frozenset((errno.ENOMEM, errno.EAGAIN, errno.EINTR))
"""Refusals that say nothing about what was sent: the same may be accepted a second later."""

Fragments = dict[ServicePortName, Fragment]


class NftablesBackend:
    """nftables mode for one IP family. Implements `pointsman.backends.contract.Backend`.

    Belongs to one thread. `service_metrics` puts counters on the elements; `localhost_node_ports` is the gate
    KubeProxyNFTablesLocalhostNodePorts. The kernel socket is opened in the network namespace of the first call that needs it.
    """

    def __init__(
        self, family: Family, *, service_metrics: bool = False, localhost_node_ports: bool = False
    ) -> None:
        self.family = family
        self._traits = traits_of(family)
        self._counters = service_metrics
        self._socket: NftablesSocket | None = None
        self._contents: Contents | None = None
        self._rejected: dict[ServicePortName, str] = {}
        self._watch = drift.Watch()
        self._totals = ConnectionTotals()
        self._loopback = LoopbackNodePorts(family) if localhost_node_ports else None

    # --- the contract ---------------------------------------------------------------------------------------

    def sync(self, request: SyncRequest) -> SyncReport:
        """Bring the kernel to the desired state; raises KernelError and changes nothing on failure."""
        contents = self._contents
        if request.full or contents is None or contents.context != request.context:
            return self._full_sync(request, ())
        return self._incremental_sync(contents, request)

    def drift(self) -> Drift | None:
        """Whether somebody else changed what we own, seen by the generation and a short inventory."""
        if self._contents is None:
            return None
        return self._watch.drift(self._contents, self._open(), self._reader())

    def verify(self, request: SyncRequest) -> list[Difference]:
        """Every difference between the kernel and the desired state."""
        return verify.differences(self._desired(request), self._reader())

    def traffic(self) -> Traffic:
        """Connections per service port and endpoint since the first sync; empty without service metrics."""
        if self._contents is not None and self._counters:
            self._totals.add(self._contents, self._reader())
        return self._totals.counts()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._loopback is not None:
            self._loopback.close()

    # --- syncing --------------------------------------------------------------------------------------------

    def _full_sync(self, request: SyncRequest, notes: tuple[str, ...]) -> SyncReport:
        with contextlib.suppress(KernelError):
            self.traffic()
        table = self._reader().table()
        rejected: dict[ServicePortName, str] = {}
        with _collector_paused():
            fragments = self._compile_all(request, rejected)
            contents, batch, size = self._load(request, fragments, table, rejected)
        if table is not None and table.comment != contents.comment:
            notes = (
                *notes,
                f"replaced table {self._traits.keyword} {TABLE} ({table.comment or 'no comment'})",
            )
        self._contents = contents
        self._rejected = rejected
        self._totals.restarted()
        self._watch.loaded(self._open(), self._reader())
        if self._loopback is not None:
            asked = request.context.node_port_addresses.loopback_asked
            notes = (*notes, *self._loopback.replace(request.plans if asked else {}))
        return self._report(contents, batch, size, full=True, notes=notes)

    def _load(
        self,
        request: SyncRequest,
        fragments: Fragments,
        table: KernelTable | None,
        rejected: dict[ServicePortName, str],
    ) -> tuple[Contents, Batch, int]:
        """Commit everything; what the kernel refuses is taken out of `fragments` and put into `rejected`."""
        in_place = True

        def attempt() -> tuple[Contents, Batch]:
            contents = self._contents_of(request, fragments)
            return contents, _full_batch(contents, table, in_place=in_place)

        contents, batch = attempt()
        for _ in range(_BLAME_ROUNDS):
            try:
                return contents, batch, self._commit(batch)
            except BatchRefused as refusal:
                if refusal.errno in _MOMENTARY:
                    raise
                guilty = self._blame(batch, fragments)
                if not guilty:
                    if table is None or not in_place:
                        raise self._explained(batch, refusal) from refusal
                    in_place = False
                for name, reason in guilty.items():
                    del fragments[name]
                    rejected[name] = reason
                contents, batch = attempt()
        return contents, batch, self._commit(batch)

    def _incremental_sync(self, contents: Contents, request: SyncRequest) -> SyncReport:
        rejected = {name: why for name, why in self._rejected.items() if name not in request.changed}
        updates = self._compile_changed(request, contents, rejected)
        for _ in range(_BLAME_ROUNDS):
            change = Change(contents, updates)
            if not change.batch:
                size = 0
                break
            try:
                size = self._commit(change.batch)
                break
            except BatchRefused as refusal:
                if refusal.errno in _MOMENTARY:
                    raise
                trouble = self._watch.damage(contents, self._reader())
                if trouble is not None:
                    return self._full_sync(request, (f"{trouble}; loaded everything anew",))
                new = {name: fragment for name, fragment in updates.items() if fragment is not None}
                guilty = self._blame(change.batch, new)
                if not guilty:
                    raise self._explained(change.batch, refusal) from refusal
                for name, reason in guilty.items():
                    del updates[name]
                    rejected[name] = reason
        else:
            raise Rejected("the kernel keeps refusing parts of the change", errno.EINVAL)
        contents.apply(change.delta)
        self._rejected = rejected
        if change.batch:
            self._watch.committed(self._open())
        notes: tuple[str, ...] = ()
        if self._loopback is not None and request.context.node_port_addresses.loopback_asked:
            notes = tuple(self._loopback.update(request.changed))
        return self._report(contents, change.batch, size, full=False, notes=notes)

    def _report(
        self, contents: Contents, batch: Batch, size: int, *, full: bool, notes: tuple[str, ...] = ()
    ) -> SyncReport:
        return SyncReport(
            full=full,
            rejected=dict(self._rejected),
            rules_total=contents.element_counts(),
            rules_last=batch.element_counts(),
            batch_bytes=size,
            notes=notes,
        )

    # --- compiling ------------------------------------------------------------------------------------------

    def _compile_changed(
        self, request: SyncRequest, contents: Contents, rejected: dict[ServicePortName, str]
    ) -> dict[ServicePortName, Fragment | None]:
        def compile_one(plan: ServicePlan) -> Fragment:
            previous = contents.fragments.get(plan.name)
            return fragment_from_plan(plan, request.context, previous, counters=self._counters)

        present = {name: plan for name, plan in request.changed.items() if plan is not None}
        gone = dict.fromkeys(request.changed.keys() - present.keys())
        return {**gone, **compiled_each(present, compile_one, rejected)}

    def _compile_all(self, request: SyncRequest, rejected: dict[ServicePortName, str]) -> Fragments:
        context, counters = request.context, self._counters
        return compiled_each(
            request.plans, lambda plan: fragment_from_plan(plan, context, counters=counters), rejected
        )

    def _contents_of(self, request: SyncRequest, fragments: Mapping[ServicePortName, Fragment]) -> Contents:
        contents = Contents(request.context, counters=self._counters)
        contents.load(fragments)
        return contents

    def _desired(self, request: SyncRequest) -> Contents:
        fragments = self._compile_all(request, {})
        for name in self._rejected:
            fragments.pop(name, None)
        return self._contents_of(request, fragments)

    # --- the kernel -----------------------------------------------------------------------------------------

    def _open(self) -> NftablesSocket:
        if self._socket is None:
            self._socket = NftablesSocket()
        return self._socket

    def _reader(self) -> Reader:
        return Reader(self._open(), self._traits)

    def _commit(self, batch: Batch, *, one_by_one: bool = False) -> int:
        return self._open().commit(_messages(batch, self._traits, one_by_one=one_by_one))

    def _blame(
        self, batch: Batch, fragments: Mapping[ServicePortName, Fragment]
    ) -> dict[ServicePortName, str]:
        """Service ports whose objects the kernel refuses, with the reason.

        Asked again without applying and with every element in its own message: one round then names them all. The
        messages of the batch itself hold thousands of elements each, so nobody can be blamed by their faults.
        """
        guilty: dict[ServicePortName, str] = {}
        for fault in self._open().check(_messages(batch, self._traits, one_by_one=True)):
            if fault.position < 0 or fault.errno in _MOMENTARY:
                continue
            culprit = batch.culprit(fault.position)
            owners = [name for name, fragment in fragments.items() if _owns(fragment, culprit)]
            if owners:
                guilty[owners[-1]] = f"{culprit.what}: {fault}"
        return guilty

    def _explained(self, batch: Batch, refusal: BatchRefused) -> Rejected:
        faults: list[Fault] = self._open().check(_messages(batch, self._traits, one_by_one=True))
        known = [fault for fault in faults if fault.position >= 0]
        objects = [batch.culprit(fault.position).what for fault in known[:5]]
        reasons = [f"{what}: {fault}" for what, fault in zip(objects, known, strict=False)]
        message = "; ".join(reasons) or str(refusal)
        return Rejected(f"nftables refused the change: {message}", refusal.errno, objects)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """A full load makes many small tuples and no cycles: looking for some costs a third of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _messages(batch: Batch, traits: FamilyTraits, *, one_by_one: bool) -> list[Message]:
    encoded = batch.messages(one_by_one=one_by_one)
    return [nftables_message(kind, traits.nfproto, flags, body) for kind, flags, body in encoded]


def _full_batch(contents: Contents, table: KernelTable | None, *, in_place: bool) -> Batch:
    if table is None:
        return contents.full_batch(replace=False, update=False)
    if table.comment != contents.comment or not in_place:
        return contents.full_batch(replace=True, update=False)
    chains = {chain.name for chain in contents.all_chains()}
    sets = {spec.name for spec in contents.all_sets()}
    return contents.full_batch(
        replace=False,
        update=True,
        stale_chains=sorted(table.chains.keys() - chains),
        stale_sets=sorted(name for name in table.sets.keys() - sets if is_affinity_set(name)),
    )


def _owns(fragment: Fragment, culprit: Culprit) -> bool:
    where, key = culprit.where, culprit.key
    if key:
        return any(e.where == where and e.key == key for e in fragment.elements) or any(
            pool.where == where and pool.prefix == key[:-SLOT_LENGTH] for pool in fragment.pools
        )
    return any(chain.name == where for chain in fragment.chains) or any(
        spec.name == where for spec in fragment.sets
    )
