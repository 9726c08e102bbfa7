"""Whether the kernel holds the table as it should: own and external commits, kernels that cannot look elements up."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
from tests.factory import context, endpoint, plan, service_port

from pointsman.backends.nftables import encode
from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.fields import find_traits
from pointsman.backends.nftables.fragment import Fragment, Slots
from pointsman.backends.nftables.reader import NarrowReader
from pointsman.backends.nftables.schema import CLUSTER_IPS, ENDPOINTS
from pointsman.backends.nftables.table_socket import find_rejected_service_ports
from pointsman.errors import NotSupported
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import pack_attribute, pack_nested
from pointsman.kernel.netlink import Answer, Message, Reply
from pointsman.kernel.nfnl import CommitLog, Fault, NftablesSocket, build_header
from pointsman.model.addresses import Family
from pointsman.model.service import ServicePortName


class Generations:
    """A kernel that does nothing but count transactions."""

    def __init__(self) -> None:
        self.count = 7
        self.race = 0
        """External transactions right before the next commit."""

    def commit(self, _messages: Sequence[Message]) -> int:
        self.count += 1 + self.race
        self.race = 0
        return 100

    def read_generation(self) -> int:
        return self.count

    @property
    def socket(self) -> NftablesSocket:
        return cast(NftablesSocket, self)


def test_commits_of_the_other_family_are_not_external() -> None:
    kernel, log = Generations(), CommitLog()
    log.commit(kernel.socket, ())
    for _ in range(3):
        log.commit(kernel.socket, ())
    assert log.read(kernel.socket, since=8) == (11, False)
    assert log.read(kernel.socket, since=11) == (11, False)


@pytest.mark.parametrize("own_after", [0, 1, 2])
def test_an_external_commit_is_seen_however_many_of_ours_follow(own_after: int) -> None:
    kernel, log = Generations(), CommitLog()
    log.commit(kernel.socket, ())
    known = kernel.count
    kernel.count += 1
    for _ in range(own_after):
        log.commit(kernel.socket, ())
    assert log.read(kernel.socket, since=known) == (kernel.count, True)
    known = kernel.count
    log.commit(kernel.socket, ())
    log.commit(kernel.socket, ())
    assert log.read(kernel.socket, since=known) == (kernel.count, own_after == 0)


def test_an_external_commit_at_the_same_time_as_ours_is_seen() -> None:
    kernel, log = Generations(), CommitLog()
    log.commit(kernel.socket, ())
    known, kernel.race = kernel.count, 1
    log.commit(kernel.socket, ())
    assert log.read(kernel.socket, since=known) == (kernel.count, True)


# --- kernels that cannot look an element up by its key ------------------------------------------------------


def some_fragments(services: int, endpoints: int = 1) -> dict[ServicePortName, Fragment]:
    plans = [
        plan(
            service_port(
                name=f"svc-{number}",
                cluster_ip=f"10.{96 + number // 65536}.{number // 256 % 256}.{number % 256}",
            ),
            *(endpoint(f"10.244.0.{n + 1}") for n in range(endpoints)),
        )
        for number in range(1, services + 1)
    ]
    return {made.name: compile_fragment(made, context()) for made in plans}


class WithoutLookups:
    """The netlink socket of a kernel that answers EINVAL to every single question, and lists one set."""

    def __init__(self, listed: Sequence[bytes]) -> None:
        elements = [
            pack_nested(
                nf.NFTA_LIST_ELEM,
                pack_nested(nf.NFTA_SET_ELEM_KEY, pack_attribute(nf.NFTA_DATA_VALUE, key)),
            )
            for key in listed
        ]
        self._body = pack_nested(nf.NFTA_SET_ELEM_LIST_ELEMENTS, *elements)

    def request(self, messages: Sequence[Message]) -> list[Reply]:
        return [Reply(errno.EINVAL) for _ in messages]

    def dump(self, message: Message, _what: str, *, needs: str, max_bytes: int | None) -> list[Answer]:
        assert needs
        return [Answer(message.kind, 0, 0, build_header(2) + self._body)]


def test_an_element_that_cannot_be_looked_up_is_not_taken_for_a_deleted_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contents = Contents(context())
    contents.load(some_fragments(2))
    wanted = contents.list_keys()[CLUSTER_IPS]
    monkeypatch.setattr(
        "pointsman.kernel.nfnl.NetlinkSocket",
        lambda _protocol: WithoutLookups([*wanted, b"\x0a\x09\x09\x09"]),
    )
    socket = NftablesSocket()
    body = encode.encode_element_list(CLUSTER_IPS)
    with pytest.raises(NotSupported):
        socket.get_each(nf.NFT_MSG_GETSETELEM, 2, [body], "look up elements")
    reader = NarrowReader(socket, find_traits(Family.IPV4), contents)
    assert sorted(reader.read_elements(contents.sets[CLUSTER_IPS])) == sorted(wanted)


# --- many faults in one batch -------------------------------------------------------------------------------


def test_owners_of_many_faults_are_found_in_one_pass_over_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    iterate = Slots.__iter__

    def counted(slots: Slots) -> Iterator[tuple[bytes, bytes]]:
        nonlocal read
        for entry in iterate(slots):
            read += 1
            yield entry

    fragments = some_fragments(300, endpoints=2)
    contents = Contents(context())
    contents.load(fragments)
    batch = contents.build_full_batch(replace=False, update=False)
    total = len(list(batch.encode(one_by_one=True)))
    monkeypatch.setattr(Slots, "__iter__", counted)
    faults = [Fault(position, errno.EINVAL) for position in range(total)]
    rejected = find_rejected_service_ports(batch, faults, fragments)
    assert rejected.keys() == fragments.keys()
    assert read == contents.counts[ENDPOINTS] == 600
