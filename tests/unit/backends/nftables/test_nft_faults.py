"""Who is blamed when the kernel refuses a batch, and what two families on their threads share."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterable, Sequence

import pytest
from tests.factory import context, endpoint, impossible, plan, service_port

from pointsman.backends.contract import SyncReport, SyncRequest
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.backends.nftables.fields import pack_slot_numbers
from pointsman.errors import KernelError, Rejected
from pointsman.kernel import attributes as nla
from pointsman.kernel import nf_tables
from pointsman.kernel.netlink import Answer, Message
from pointsman.kernel.nfnl import SUBSYS_NFTABLES, BatchRejected, Fault, build_header
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

Plans = dict[ServicePortName, ServicePlan]


class RefusingKernel:
    """No table yet; every message of one batch is refused with `fault`, and `check` finds what it is told to find."""

    def __init__(self, fault: int, found: Sequence[Fault] = ()) -> None:
        self.fault = fault
        self.found = list(found)
        self.committed: list[int] = []

    def commit(self, messages: Iterable[Message]) -> int:
        count = len(list(messages))
        if self.fault:
            number, self.fault = self.fault, 0
            raise BatchRejected([Fault(position, number) for position in range(count)])
        self.committed.append(count)
        return 1

    def check(self, messages: Iterable[Message]) -> list[Fault]:
        found, self.found = self.found, []
        return found

    def read_generation(self) -> int:
        return 1

    def get(self, kind: int, family: int, body: bytes, what: str) -> Answer | None:
        return None

    def close(self) -> None:
        """Nothing is open."""


def plans(count: int) -> Plans:
    found: Plans = {}
    for number in range(count):
        port = service_port(name=f"svc-{number}", cluster_ip=f"10.96.0.{number + 1}")
        made = plan(port, endpoint(f"10.244.0.{number + 1}"))
        found[made.name] = made
    return found


def backend_on(kernel: RefusingKernel, monkeypatch: pytest.MonkeyPatch) -> NftablesBackend:
    monkeypatch.setattr("pointsman.backends.nftables.table_socket.NftablesSocket", lambda: kernel)
    return NftablesBackend(Family.IPV4)


@pytest.mark.parametrize("full", [True, False])
def test_a_kernel_short_of_memory_blames_no_service(monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    kernel = RefusingKernel(0)
    backend = backend_on(kernel, monkeypatch)
    wanted = plans(20)
    backend.sync(SyncRequest(context(), {}, {}, full=True))
    kernel.fault = errno.ENOMEM
    changed = {} if full else wanted
    with pytest.raises(KernelError):
        backend.sync(SyncRequest(context(), wanted, changed, full=full))
    assert backend.sync(SyncRequest(context(), wanted, changed, full=True)).rejected == {}


def test_nobody_is_blamed_by_guesswork_when_the_second_look_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = RefusingKernel(errno.EINVAL)
    backend = backend_on(kernel, monkeypatch)
    with pytest.raises(KernelError):
        backend.sync(SyncRequest(context(), plans(3), {}, full=True))
    assert kernel.committed == []


class StubbornKernel(RefusingKernel):
    """Refuses every commit that holds one of the named service ports' elements, and says which."""

    def __init__(self, refused: Callable[[bytes], bool]) -> None:
        super().__init__(0)
        self.refused = refused

    def commit(self, messages: Iterable[Message]) -> int:
        sent = list(messages)
        if faults := self.check(sent):
            raise BatchRejected(faults)
        return super().commit(sent)

    def check(self, messages: Iterable[Message]) -> list[Fault]:
        kind = SUBSYS_NFTABLES << 8 | nf_tables.NFT_MSG_NEWSETELEM
        return [
            Fault(position, errno.EINVAL)
            for position, message in enumerate(messages)
            if message.kind == kind and b"service-ips" in message.payload and self.refused(message.payload)
        ]


class ElementKernel(StubbornKernel):
    """Holds the keys of the elements that were committed."""

    def __init__(self) -> None:
        super().__init__(lambda _payload: False)
        self.elements: set[tuple[bytes, bytes]] = set()

    def commit(self, messages: Iterable[Message]) -> int:
        sent = list(messages)
        size = super().commit(sent)
        for message in sent:
            kind, fields = message.kind & 0xFF, nla.parse_attributes(message.payload[len(build_header(0)) :])
            if kind == nf_tables.NFT_MSG_DELTABLE:
                self.elements.clear()
            elif kind in (nf_tables.NFT_MSG_NEWSETELEM, nf_tables.NFT_MSG_DELSETELEM):
                name = fields[nf_tables.NFTA_SET_ELEM_LIST_SET]
                items = nla.iter_attributes(fields[nf_tables.NFTA_SET_ELEM_LIST_ELEMENTS])
                keys = {(name, nla.parse_attributes(item)[nf_tables.NFTA_SET_ELEM_KEY]) for _, item in items}
                if kind == nf_tables.NFT_MSG_NEWSETELEM:
                    self.elements |= keys
                else:
                    self.elements -= keys
        return size


class NftablesHarness:
    """A backend, and what its kernel holds; see test_backend_contract.py."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernel = ElementKernel()
        self.plans: Plans = {}
        monkeypatch.setattr("pointsman.backends.nftables.table_socket.NftablesSocket", lambda: self.kernel)
        self.restart()

    def restart(self) -> None:
        self.backend = NftablesBackend(Family.IPV4)

    def sync(self, *plans: ServicePlan, full: bool = False) -> SyncReport:
        changed = {one.name: one for one in plans}
        self.plans |= changed
        return self.backend.sync(SyncRequest(context(), self.plans, changed, full))

    def reject(self, *plans: ServicePlan) -> None:
        addresses = [one.port.cluster_ip for one in plans]
        self.kernel.refused = lambda payload: any(address in payload for address in addresses)

    def held(self) -> object:
        return self.kernel.elements


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("refused", "accepted"), [(1, True), (2, True), (3, False), (5, False)])
def test_a_sync_that_would_leave_out_most_service_ports_fails(
    monkeypatch: pytest.MonkeyPatch, full: bool, refused: int, accepted: bool
) -> None:
    wanted = plans(5)
    bad = [plan.port.cluster_ip for plan in list(wanted.values())[:refused]]
    kernel = StubbornKernel(lambda payload: any(address in payload for address in bad))
    backend = backend_on(kernel, monkeypatch)
    backend.sync(SyncRequest(context(), {}, {}, full=True))
    request = SyncRequest(context(), wanted, dict(wanted), full=full)
    if accepted:
        assert len(backend.sync(request).rejected) == refused
    else:
        with pytest.raises(Rejected, match=f"{refused} of 5 service ports were rejected"):
            backend.sync(request)


def test_slot_numbers_are_right_for_two_threads_at_once() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    wrong: list[int] = []

    def look(start: int) -> None:
        for count in range(start, 6000, 500):
            numbers = pack_slot_numbers(count)
            wrong.extend(n for n in range(count) if int.from_bytes(numbers[n], sys.byteorder) != n)

    threads = [threading.Thread(target=look, args=(start,)) for start in (100, 200, 300, 400)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_a_changed_plan_that_cannot_be_compiled_loses_its_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = RefusingKernel(0)
    backend = backend_on(kernel, monkeypatch)
    broken = impossible()
    served = plan(service_port("broken", cluster_ip="10.96.0.66"), endpoint())
    before = {**plans(2), broken.name: served}
    backend.sync(SyncRequest(context(), before, {}, full=True))
    after = before | {broken.name: broken}
    report = backend.sync(SyncRequest(context(), after, {broken.name: broken}, full=False))
    assert list(report.rejected) == [broken.name]
    assert report.rules_total["service-ips"] == 2
