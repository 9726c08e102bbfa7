"""nfnetlink batches: many nftables messages as one transaction, and which of them made the kernel reject it.

The kernel runs a batch inside send() and applies all of it or nothing. Kernels before 6.10 send no
acknowledgement for a batch, so after sending, the socket is read without waiting: no error means committed.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from pointsman.errors import Busy, KernelError, NotSupported, Rejected
from pointsman.kernel import attributes as nla
from pointsman.kernel import netlink, nf_tables
from pointsman.kernel.netlink import Answer, Closable, Message, NetlinkSocket, Reply
from pointsman.model.addresses import Family

_Element = TypeVar("_Element")
_Key = TypeVar("_Key")

SUBSYS_NFTABLES = 10
_HEADER = struct.Struct(">BBH")
_BATCH_BEGIN = 0x10
_BATCH_END = 0x11

_MAX_LISTINGS = 10
_MAX_MESSAGES = 1 << 24
"""Of a batch: sequence numbers are reserved before they are counted."""

NFPROTO = {Family.IPV4: nf_tables.NFPROTO_IPV4, Family.IPV6: nf_tables.NFPROTO_IPV6}
FAMILY_KEYWORDS = {
    nf_tables.NFPROTO_INET: "inet",
    nf_tables.NFPROTO_IPV4: "ip",
    nf_tables.NFPROTO_IPV6: "ip6",
}
"""Names of families in nft's syntax."""

NEED_NFTABLES = "CONFIG_NF_TABLES (module nf_tables)"


def build_header(family: int, resource: int = 0) -> bytes:
    """Return the nfgenmsg that starts every nfnetlink payload."""
    return _HEADER.pack(family, 0, resource)


def parse_answer(answer: Answer) -> dict[int, bytes]:
    """Return the attributes behind the nfgenmsg."""
    return nla.parse_attributes(answer.payload, _HEADER.size)


def parse_comment(userdata: bytes) -> str:
    """Return the comment in the user data of a table or rule: nft stores it as an entry of type 0."""
    return nla.parse_text(userdata[2 : 2 + userdata[1]]) if len(userdata) > 2 and userdata[0] == 0 else ""


def parse_value(data: bytes) -> bytes:
    """Return the plain value in a data attribute; empty for a verdict."""
    return nla.parse_attributes(data).get(nf_tables.NFTA_DATA_VALUE, b"")


def build_nftables_message(kind: int, family: int, flags: int, body: bytes) -> Message:
    return Message((SUBSYS_NFTABLES << 8) | kind, flags, build_header(family) + body)


class Fault(NamedTuple):
    """Why the kernel rejected one message of a batch."""

    position: int
    """Position in the batch, -1 when the batch as a whole was rejected."""
    errno: int
    text: str = ""

    def __str__(self) -> str:
        reason = os.strerror(self.errno)
        return f"{reason} ({self.text})" if self.text else reason


class BatchRejected(Rejected):
    """Nothing of the batch was applied; `faults` names the rejected messages."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"message {fault.position}: {fault}" for fault in faults), faults[0].errno)
        self.faults = tuple(faults)


class NftablesSocket(Closable):
    """Transactions and queries against nf_tables of the network namespace it was opened in."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket(netlink.NETLINK_NETFILTER)

    def close(self) -> None:
        self._netlink.close()

    def commit(self, messages: Iterable[Message], *, dry_run: bool = False) -> int:
        """Apply all messages or raise BatchRejected; return the number of bytes sent. A dry run applies none."""
        size, faults = self._run(messages, apply=not dry_run)
        if not faults:
            return size
        if faults[0].errno == errno.EPERM or (faults[0].errno == errno.EOPNOTSUPP and faults[0].position < 0):
            raise netlink.build_kernel_error(
                faults[0].errno, "nftables transaction", faults[0].text, needs=NEED_NFTABLES
            )
        raise BatchRejected(faults)

    def delete_table(self, family: int, name: str, *, dry_run: bool = False) -> bool:
        """Delete a table; False when there is none. Raises KernelError."""
        body = nla.pack_text(nf_tables.NFTA_TABLE_NAME, name)
        try:
            self.commit(
                [build_nftables_message(nf_tables.NFT_MSG_DELTABLE, family, 0, body)], dry_run=dry_run
            )
        except BatchRejected as refused:
            if refused.errno != errno.ENOENT:
                raise
            return False
        return True

    def check(self, messages: Iterable[Message]) -> list[Fault]:
        """Return the faults of a batch without applying it: a batch without its end is rolled back."""
        return self._run(messages, apply=False)[1]

    def _run(self, messages: Iterable[Message], *, apply: bool) -> tuple[int, list[Fault]]:
        """Send a batch; of its messages only the bytes are kept, because a full load has tens of megabytes."""
        first = self._netlink.reserve_sequences(_MAX_MESSAGES)
        request = netlink.NLM_F_REQUEST
        data = bytearray(netlink.build_frame(_BATCH_BEGIN, request, first, build_header(0, SUBSYS_NFTABLES)))
        count = 0
        for message in messages:
            count += 1
            data += netlink.build_frame(message.kind, message.flags | request, first + count, message.payload)
        if apply:
            data += netlink.build_frame(
                _BATCH_END, request, first + count + 1, build_header(0, SUBSYS_NFTABLES)
            )
        self._netlink.send(data)
        return len(data), self._read_faults(first, count)

    def _read_faults(self, first: int, count: int) -> list[Fault]:
        faults: list[Fault] = []
        while True:
            try:
                answers = self._netlink.receive(wait=False)
            except KernelError as error:
                if error.errno == errno.ENOBUFS:
                    # Only error messages can fill the buffer: the batch failed, some of the reasons are lost.
                    faults.append(Fault(-1, errno.ENOBUFS, "too many errors to report"))
                    continue
                raise
            if not answers:
                return faults
            for answer in answers:
                if answer.kind != netlink.NLMSG_ERROR:
                    continue
                reply = netlink.parse_reply(answer)
                if reply.errno:
                    index = answer.sequence - first - 1
                    known = 0 <= index < count
                    faults.append(Fault(index if known else -1, reply.errno, reply.text))

    def read_generation(self) -> int:
        """Return the ruleset generation, which every transaction in this namespace increments."""
        answers = self._netlink.request_one(
            build_nftables_message(nf_tables.NFT_MSG_GETGEN, 0, 0, b""),
            "read nftables generation",
            needs=NEED_NFTABLES,
        )
        for answer in answers:
            found = parse_answer(answer)
            if nf_tables.NFTA_GEN_ID in found:
                return int.from_bytes(found[nf_tables.NFTA_GEN_ID], "big")
        raise KernelError("the kernel did not report an nftables generation")

    def dump(
        self, kind: int, family: int, body: bytes, what: str, *, max_bytes: int | None = None
    ) -> list[Answer]:
        message = build_nftables_message(kind, family, 0, body)
        return self._netlink.dump(message, what, needs=NEED_NFTABLES, max_bytes=max_bytes)

    def dump_elements(
        self,
        family: int,
        body: bytes,
        what: str,
        parse: Callable[[dict[int, bytes]], _Element],
        identify: Callable[[_Element], _Key],
        *,
        max_bytes: int | None = None,
    ) -> dict[_Key, _Element]:
        """Return every element of a set, parsed from its attributes, by what `identify` returns: no two may share it.

        A set that takes more than `max_bytes` of answers is not returned completely.

        The kernel continues a listing by the number of elements listed so far. When it resizes their hash table between
        two parts, which it does later and without marking the listing as interrupted, their order changes: some elements
        are listed twice, and as many not at all. Such a listing is repeated.
        """
        for _ in range(_MAX_LISTINGS):
            found: dict[_Key, _Element] = {}
            listed = 0
            for answer in self.dump(nf_tables.NFT_MSG_GETSETELEM, family, body, what, max_bytes=max_bytes):
                items = parse_answer(answer).get(nf_tables.NFTA_SET_ELEM_LIST_ELEMENTS, b"")
                for _, item in nla.iter_attributes(items):
                    element = parse(nla.parse_attributes(item))
                    found[identify(element)] = element
                    listed += 1
            if len(found) == listed:
                return found
        raise Busy(f"{what}: the kernel moved elements during each of {_MAX_LISTINGS} listings", errno.EINTR)

    def get_each(self, kind: int, family: int, bodies: Sequence[bytes], what: str) -> list[Answer | None]:
        """Return one object per body, None for those that do not exist; raises NotSupported where the kernel cannot look them up."""
        replies = self._netlink.request([build_nftables_message(kind, family, 0, body) for body in bodies])
        return [_parse_reply(reply, what) for reply in replies]

    def get(self, kind: int, family: int, body: bytes, what: str) -> Answer | None:
        """Return one object, or None when it does not exist."""
        return self.get_each(kind, family, (body,), what)[0]


def _parse_reply(reply: Reply, what: str) -> Answer | None:
    if reply.errno == errno.ENOENT:
        return None
    if reply.errno == errno.EINVAL:
        # The error of nfnetlink for a subsystem that is not there, and nf_tables for elements that it cannot look up by key.
        raise NotSupported(f"{what}: the kernel needs {NEED_NFTABLES}", reply.errno)
    if reply.errno:
        raise netlink.build_kernel_error(reply.errno, what, reply.text, needs=NEED_NFTABLES)
    return reply.answers[0] if reply.answers else None


class CommitLog:
    """Distinguishes ruleset generations of commits of this process from those of other programs.

    Shared by the backends of both IP families, which commit on threads of their own: a change of one family is not
    an external change to the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = self._last = -1
        """Each generation after the first, up to the last, is one of our commits."""

    def commit(self, socket: NftablesSocket, messages: Iterable[Message]) -> int:
        """Commit, and return the number of bytes sent; raises KernelError."""
        with self._lock:
            size = socket.commit(messages)
            generation = socket.read_generation()
            if generation != self._last + 1:
                self._first = generation
            self._last = generation
            return size

    def read(self, socket: NftablesSocket, since: int) -> tuple[int, bool]:
        """Return the current generation, and whether other programs committed after generation `since`."""
        with self._lock:
            generation = socket.read_generation()
            own = generation == since or (self._first <= since and generation == self._last)
            return generation, not own
