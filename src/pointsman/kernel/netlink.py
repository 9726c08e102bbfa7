"""Netlink: framing, pipelined requests and dumps, shared by every module that talks to the kernel.

Hand-packed on purpose: one nftables element costs below a microsecond this way. Attributes are packed and unpacked
in attributes.py, which does no I/O; message types and attribute numbers of each subsystem live next to their users.

Guarantees: answers come from the kernel only (sender checked), every request gets exactly one `Reply` in order,
a `dump` that the kernel marks as interrupted is repeated (a caller who reads answers itself sees to that), and
extended-ACK texts are kept because they name the wrong attribute.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from pointsman.errors import Busy, KernelError, NotSupported, Rejected
from pointsman.kernel.attributes import parse_attributes, parse_text

NLM_F_REQUEST = 0x01
NLM_F_ACK = 0x04
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP_FILTERED = 0x20
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200
NLM_F_ROOT = 0x100
NLM_F_MATCH = 0x200
NLM_F_DUMP = NLM_F_ROOT | NLM_F_MATCH
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800

NLMSG_NOOP = 1
NLMSG_ERROR = 2
NLMSG_DONE = 3

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12
NETLINK_GENERIC = 16

_SOL_NETLINK = 270
_NETLINK_CAP_ACK = 10
_NETLINK_EXT_ACK = 11
_NETLINK_GET_STRICT_CHK = 12
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_NLMSGERR_ATTR_MSG = 1

_HEADER = struct.Struct("=IHHII")
_ERRNO = struct.Struct("=i")
_U32 = struct.Struct("=I")

HEADER_LENGTH = _HEADER.size

_RECEIVE_SIZE = 256 * 1024
_SEND_BUFFER_BYTES = 1 << 20
_MESSAGES_PER_SEND = 500
_BYTES_PER_SEND = 128 * 1024
_DUMP_ATTEMPTS = 10
_ANSWER_SECONDS = 30

_UNSUPPORTED = frozenset(
    (
        errno.EOPNOTSUPP,
        errno.EAFNOSUPPORT,
        errno.EPROTONOSUPPORT,
        errno.EPROTOTYPE,
        errno.ENOSYS,
        errno.ENOPROTOOPT,
    )
)


# --- messages -----------------------------------------------------------------------------------------------


class Message(NamedTuple):
    """A request before it has a sequence number; the payload includes the subsystem's own header."""

    kind: int
    flags: int
    payload: bytes


class Answer(NamedTuple):
    """One message from the kernel."""

    kind: int
    flags: int
    sequence: int
    payload: bytes


class Reply(NamedTuple):
    """The result of one request."""

    errno: int
    """0 when the kernel accepted it."""
    text: str = ""
    """The kernel's own text (extended ACK), often empty."""
    answers: tuple[Answer, ...] = ()
    """Data messages that came before the acknowledgement."""

    @property
    def ok(self) -> bool:
        return self.errno == 0


_ACCEPTED = Reply(0)


def build_frame(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """Return the bytes of one message; payloads are already padded because attributes are."""
    return _HEADER.pack(HEADER_LENGTH + len(payload), kind, flags, sequence, 0) + payload


def split(data: bytes) -> Iterator[Answer]:
    """Yield the messages of one datagram."""
    offset, end = 0, len(data)
    while offset + HEADER_LENGTH <= end:
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < HEADER_LENGTH or offset + length > end:
            return
        yield Answer(kind, flags, sequence, data[offset + HEADER_LENGTH : offset + length])
        offset += (length + 3) & ~3


def parse_reply(answer: Answer) -> Reply:
    """Decode an NLMSG_ERROR or NLMSG_DONE message, with its extended-ACK part."""
    code = -_ERRNO.unpack_from(answer.payload)[0] if len(answer.payload) >= 4 else 0
    if not answer.flags & NLM_F_ACK_TLVS:
        return Reply(code)
    start = 4
    if answer.kind == NLMSG_ERROR:
        start += HEADER_LENGTH
        if not answer.flags & NLM_F_CAPPED and len(answer.payload) >= 8:
            start = 4 + ((_U32.unpack_from(answer.payload, 4)[0] + 3) & ~3)
    found = parse_attributes(answer.payload, start)
    return Reply(code, parse_text(found.get(_NLMSGERR_ATTR_MSG, b"")))


def build_kernel_error(code: int, what: str, detail: str = "", *, needs: str = "") -> KernelError:
    """Return the error to raise for an errno; `needs` names the kernel option behind a missing feature."""
    message = f"{what}: {os.strerror(code)}"
    if detail:
        message += f" ({detail})"
    if code in _UNSUPPORTED:
        return NotSupported(f"{message}; the kernel needs {needs}" if needs else message, code)
    if code in (errno.EPERM, errno.EACCES):
        return KernelError(f"{message}; CAP_NET_ADMIN is needed in this network namespace", code)
    if code == errno.EBUSY:
        return Busy(message, code)
    return Rejected(message, code)


# --- the socket ---------------------------------------------------------------------------------------------


class Closable(contextlib.AbstractContextManager[Any]):
    """Is closed at the end of a `with` block."""

    def close(self) -> None:
        """Release what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NetlinkSocket(Closable):
    """A socket to one netlink subsystem of the network namespace it was opened in. Not thread-safe."""

    def __init__(
        self,
        protocol: int,
        *,
        groups: int = 0,
        receive_buffer: int = 8 << 20,
    ) -> None:
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except OSError as error:
            raise build_kernel_error(
                error.errno or 0, f"open netlink socket (protocol {protocol})", needs="this netlink family"
            ) from error
        self._sequence = 1
        self._send_buffer = 0
        self._received = memoryview(bytearray(_RECEIVE_SIZE))
        _set_buffer(self._socket, _SO_RCVBUFFORCE, socket.SO_RCVBUF, receive_buffer)
        self._reserve_send_buffer(_SEND_BUFFER_BYTES)
        # With strict checks, rtnetlink honours the filters of a dump request.
        strict = (_NETLINK_GET_STRICT_CHK,) if protocol == NETLINK_ROUTE else ()
        for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK, *strict):
            with contextlib.suppress(OSError):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _ANSWER_SECONDS, 0))
        try:
            self._socket.bind((0, groups))
        except OSError as error:
            self._socket.close()
            raise build_kernel_error(error.errno or 0, f"listen to netlink groups {groups:#x}") from error

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def port_id(self) -> int:
        """The kernel's number of this socket, unique among those of this network namespace and protocol."""
        number: int = self._socket.getsockname()[0]
        return number

    def _reserve_send_buffer(self, size: int) -> None:
        """Let one send carry `size` bytes; the kernel counts bookkeeping too, so it gets twice that."""
        if size > self._send_buffer:
            _set_buffer(self._socket, _SO_SNDBUFFORCE, socket.SO_SNDBUF, size)
            self._send_buffer = size

    def reserve_sequences(self, count: int = 1) -> int:
        """Return the first of `count` fresh sequence numbers."""
        if self._sequence + count > 0x7FFFFFFF:
            self._sequence = 1
        first = self._sequence
        self._sequence += count
        return first

    def send(self, data: bytes | bytearray) -> None:
        """Send one datagram; the kernel runs its requests before this returns."""
        self._reserve_send_buffer(len(data) + (len(data) >> 3) + 65536)
        try:
            self._socket.send(data)
        except OSError as error:
            raise build_kernel_error(error.errno or 0, f"send {len(data)} bytes over netlink") from error

    def receive(self, *, wait: bool = True) -> list[Answer]:
        """Return the messages of the next datagram; empty when there is none and `wait` is false."""
        while True:
            try:
                flags = 0 if wait else socket.MSG_DONTWAIT
                size, sender = self._socket.recvfrom_into(self._received, 0, flags)
            except BlockingIOError:
                if not wait:
                    return []
                raise KernelError("the kernel did not answer over netlink", errno.ETIMEDOUT) from None
            except OSError as error:
                raise build_kernel_error(error.errno or 0, "receive over netlink") from error
            if sender[0] == 0:
                return list(split(bytes(self._received[:size])))

    def request(self, messages: Sequence[Message]) -> list[Reply]:
        """Send all messages, many per system call, and return what became of each, in order.

        Never raises for a refused message: look at `errno`. Raises KernelError when answers were lost.
        """
        replies: list[Reply] = []
        position = 0
        while position < len(messages):
            position = self._request_some(messages, position, replies)
        return replies

    def request_one(self, message: Message, what: str, *, needs: str = "") -> tuple[Answer, ...]:
        """Send one message and return the answers; raises KernelError naming `what` when it is refused."""
        reply = self.request((message,))[0]
        if reply.errno:
            raise build_kernel_error(reply.errno, what, reply.text, needs=needs)
        return reply.answers

    def _request_some(self, messages: Sequence[Message], position: int, replies: list[Reply]) -> int:
        """Send one chunk and append its replies; return the position after it.

        Only the last message requests an acknowledgement: requests run in order and errors are always reported, so when the
        last one is answered, the others without an answer succeeded. Reading one acknowledgement per message would cost
        more than the requests themselves.
        """
        chunk: list[Message] = []
        size = 0
        for message in messages[position : position + _MESSAGES_PER_SEND]:
            if chunk and size + len(message.payload) > _BYTES_PER_SEND:
                break
            chunk.append(message)
            size += HEADER_LENGTH + len(message.payload)
        first, last = self.reserve_sequences(len(chunk)), len(chunk) - 1
        self.send(
            b"".join(
                build_frame(
                    m.kind, m.flags | NLM_F_REQUEST | (NLM_F_ACK if n == last else 0), first + n, m.payload
                )
                for n, m in enumerate(chunk)
            )
        )
        outcome: dict[int, Reply] = {}
        data: dict[int, list[Answer]] = {}
        while last not in outcome:
            for answer in self.receive():
                index = answer.sequence - first
                if not 0 <= index <= last:
                    continue
                if answer.kind in (NLMSG_ERROR, NLMSG_DONE):
                    outcome[index] = parse_reply(answer)
                elif answer.kind != NLMSG_NOOP:
                    data.setdefault(index, []).append(answer)
        for index in range(len(chunk)):
            reply = outcome.get(index, _ACCEPTED)
            replies.append(reply._replace(answers=tuple(data[index])) if index in data else reply)
        return position + len(chunk)

    def dump(
        self, message: Message, what: str, *, needs: str = "", max_bytes: int | None = None
    ) -> list[Answer]:
        """Return all messages of a dump, or the first ones once they have `max_bytes`; an interrupted dump is repeated.

        Where the kernel walks a table that is being resized, some entries may come twice and others not at all: callers
        must see to that.
        """
        for _ in range(_DUMP_ATTEMPTS):
            answers = self._dump_once(message, what, needs, max_bytes)
            if answers is not None:
                return answers
        raise Busy(f"{what}: the kernel's tables changed during each of {_DUMP_ATTEMPTS} dumps", errno.EINTR)

    def _dump_once(
        self, message: Message, what: str, needs: str, max_bytes: int | None
    ) -> list[Answer] | None:
        sequence = self.reserve_sequences()
        flags = message.flags | NLM_F_REQUEST | NLM_F_DUMP
        self.send(build_frame(message.kind, flags, sequence, message.payload))
        answers: list[Answer] = []
        size, interrupted = 0, False
        while True:
            for answer in self.receive():
                if answer.sequence != sequence:
                    continue
                interrupted = interrupted or bool(answer.flags & NLM_F_DUMP_INTR)
                if answer.kind not in (NLMSG_DONE, NLMSG_ERROR):
                    if max_bytes is None or size < max_bytes:
                        answers.append(answer)
                        size += len(answer.payload)
                    continue
                reply = parse_reply(answer)
                if reply.errno == errno.EINTR:
                    return None
                if reply.errno:
                    raise build_kernel_error(reply.errno, what, reply.text, needs=needs)
                return None if interrupted else answers


def _set_buffer(sock: socket.socket, forced: int, plain: int, size: int) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, size)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, plain, size)
