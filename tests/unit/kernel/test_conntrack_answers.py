"""What the kernel's answers about flows come to: refused deletions, filters it does not know, time that runs out."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence

import pytest
from tests.unit.kernel.test_conntrack_decode import V4, message

from pointsman.kernel import netlink
from pointsman.kernel.conntrack import ConntrackTable, DeadlinePassed, FlowsLeft
from pointsman.kernel.netlink import Answer, Message, Reply
from pointsman.kernel.tracked_flows import Flow, FlowQuery
from pointsman.model.addresses import Family

DONE = Answer(netlink.NLMSG_DONE, 0, 1, bytes(4))


def flow(number: int, port: int = 53) -> Flow:
    return Flow(17, V4[0], number, V4[1], port, V4[2], 5353, V4[0], number, number.to_bytes(4, "big"))


class FakeKernel:
    """One dump per request, a datagram per flow; deletions as told."""

    def __init__(
        self,
        flows: Iterable[Flow] = (),
        flags: int = netlink.NLM_F_DUMP_FILTERED,
        answer: Callable[[int], int] = lambda _number: 0,
    ) -> None:
        self._flows, self._flags, self._answer = list(flows), flags, answer
        self._datagrams: list[Answer] = []
        self._asked = 0
        self.requests: list[bytes] = []

    def reserve_sequences(self) -> int:
        return 1

    def send(self, data: bytes) -> None:
        self.requests.append(data)
        self._datagrams = [Answer(256, self._flags, 1, message(entry)) for entry in self._flows] + [DONE]

    def receive(self) -> list[Answer]:
        return [self._datagrams.pop(0)]

    def request(self, messages: Sequence[Message]) -> list[Reply]:
        first, self._asked = self._asked, self._asked + len(messages)
        return [Reply(self._answer(number)) for number in range(first, self._asked)]

    def table(self) -> ConntrackTable:
        return ConntrackTable(Family.IPV4, open_socket=lambda _protocol: self)  # type: ignore[arg-type, return-value]


def test_a_flow_that_the_kernel_keeps_saves_no_other() -> None:
    """Older kernels do not delete a flow that a flowtable carries."""
    kernel = FakeKernel(answer=lambda number: errno.EBUSY if number == 3 else 0)
    with pytest.raises(FlowsLeft, match="delete 1 of 5000 tracked flows") as refusal:
        kernel.table().delete([flow(number) for number in range(5000)])
    assert (refusal.value.deleted, refusal.value.errno) == (4999, errno.EBUSY)


def test_flows_that_went_by_themselves_are_no_refusal() -> None:
    kernel = FakeKernel(answer=lambda number: errno.ENOENT if number % 2 else 0)
    assert kernel.table().delete([flow(number) for number in range(10)]) == 5


def test_the_refusal_that_may_end_is_the_one_that_is_told() -> None:
    kernel = FakeKernel(answer=lambda number: errno.EBUSY if number < 2 else errno.EPERM)
    with pytest.raises(FlowsLeft, match="CAP_NET_ADMIN") as refusal:
        kernel.table().delete([flow(number) for number in range(3)])
    assert refusal.value.errno == errno.EPERM


@pytest.mark.parametrize(("flags", "selects"), [(netlink.NLM_F_DUMP_FILTERED, True), (0, False)])
def test_a_kernel_that_ignores_filters_is_known_by_its_first_answer(flags: int, selects: bool) -> None:
    kernel = FakeKernel([flow(1), flow(2, port=54)], flags)
    table = kernel.table()
    assert table.list_flows(FlowQuery(17, None, 53), lambda *_: True) == [flow(1)]
    assert table.selects is selects
    table.list_flows(FlowQuery(17, None, 53), lambda *_: True)
    filtered, again = kernel.requests
    assert (again == filtered) is selects


def test_a_listing_past_its_deadline_raises() -> None:
    kernel = FakeKernel(flow(number) for number in range(5))
    left = iter((False, False, False, True))
    with pytest.raises(DeadlinePassed):
        kernel.table().list_flows(FlowQuery(17), lambda *_: True, lambda: next(left))
