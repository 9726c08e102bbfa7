"""Clients that send too much, too slowly or nonsense, or do not read: none of them takes more than its share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness.waiting import async_wait_until
from tests.unit.serve.client import Client, asking, connected, echo, statuses, talking

from pointsman.serve.connections import Connections, ErrorLog, ServingError
from pointsman.serve.listeners import Listener
from pointsman.serve.messages import Handler, Request, Response, text_response
from pointsman.serve.server import MAX_BODY_BYTES, MAX_HEAD_BYTES

CHUNKED = b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def endlessly(first: bytes, again: bytes) -> tuple[list[int], list[ServingError]]:
    """The answer to a client that sends until it is answered."""
    errors: list[ServingError] = []
    async with talking(connections=Connections(ErrorLog(errors.append))) as client:

        async def talk() -> None:
            await client.send(first)
            while not heard.done():
                await client.send(again)
                await asyncio.sleep(0)

        heard = asyncio.create_task(client.read_all())
        await talk()
    return statuses(heard.result()), errors


@pytest.mark.parametrize(
    ("first", "again", "status"),
    [
        (b"GET /", b"x" * 1000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"A: b\r\n" * 100, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: ", b"b" * 1000, 431),
        (b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n", b"x", 413),
        (b"HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n", b"x", 413),
        (CHUNKED, b"400\r\n" + b"x" * 1024 + b"\r\n", 413),
        (CHUNKED + b"1;", b"extension" * 100, 431),
        (CHUNKED + b"0\r\n", b"Trailer: x\r\n" * 100, 431),
    ],
    ids=["line", "headers", "header", "announced body", "body of HEAD", "chunks", "chunk header", "trailers"],
)
async def test_a_client_that_sends_without_end_is_refused_with_a_reason(
    first: bytes, again: bytes, status: int
) -> None:
    assert await endlessly(first, again) == ([status], [ServingError.MALFORMED])


async def test_a_client_that_goes_on_after_that_is_cut_off() -> None:
    async with talking() as client:
        while not client.ended.is_set():
            await client.send(b"\0" * 1000)
            await asyncio.sleep(0.01)


async def test_what_is_just_not_too_long_is_answered() -> None:
    head = asking("/", "A: ")
    longest = asking("/", "A: " + "x" * (MAX_HEAD_BYTES - len(head)))
    body = asking("/", method="PUT", body=b"x" * MAX_BODY_BYTES)
    for sent, expected in ((longest, 200), (longest.replace(b"x\r", b"xx\r"), 431), (body, 200)):
        async with talking() as client:
            await client.send(sent)
            assert statuses(await client.read_until(b"\r\n\r\n")) == [expected]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/9.x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere\r\n\r\n", 405),
        (CHUNKED + b"zz\r\n", 400),
        (b"\r\n\r\n", 400),
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_ended(sent: bytes, status: int) -> None:
    errors: list[ServingError] = []
    async with talking(connections=Connections(ErrorLog(errors.append))) as client:
        await client.send(asking("/first") + sent)
        received = await client.read_all()
    assert statuses(received) == [200, status]
    assert b"Connection: close\r\n" in received
    assert errors == [ServingError.MALFORMED]


class _Tracebacks(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(record)


_TOKENS = st.sampled_from(
    [
        b"GET",
        b" ",
        b"/",
        b"HTTP/1.1",
        b"\r\n",
        b"\n",
        b"Host: x",
        b"Content-Length: ",
        b"4",
        b":",
        b"\0",
        b"\xff",
    ]
    + [
        b"Transfer-Encoding: chunked",
        b"Expect: 100-continue",
        b"Upgrade: x",
        b"CONNECT",
        b"0\r\n\r\n",
        CHUNKED,
    ]
)


@given(st.lists(st.one_of(st.binary(), st.lists(_TOKENS).map(b"".join)), max_size=5))
@example([b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n"])
@example([CHUNKED + b"1" * 30])
def test_no_bytes_make_an_error_of_ours(pieces: list[bytes]) -> None:
    async def send_all() -> None:
        async with talking() as client:
            for piece in filter(None, pieces):
                await client.send(piece)
                await asyncio.sleep(0)

    tracebacks = _Tracebacks()
    logging.getLogger().addHandler(tracebacks)
    try:
        asyncio.run(send_all())
    finally:
        logging.getLogger().removeHandler(tracebacks)
    assert tracebacks.seen == []


@pytest.mark.parametrize(
    "first", [b"", b"GET / HTTP/1.1\r\nA: ", b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n"]
)
async def test_a_request_that_trickles_in_is_not_waited_for(first: bytes) -> None:
    async with talking(connections=Connections(idle_seconds=0.3)) as client:
        await client.send(first)
        while not client.ended.is_set():
            await client.send(b"x")
            await asyncio.sleep(0.01)
        assert await client.read_all() == b""


async def test_a_connection_is_not_idle_while_its_answer_is_made() -> None:
    async def slow(_request: Request) -> Response:
        await asyncio.sleep(0.2)
        return text_response("slow")

    async with talking(slow, Connections(idle_seconds=0.05)) as client:
        await client.send(asking("/1") + asking("/2"))
        assert statuses(await client.read_until(b"slow")) == [200]
        await client.send(asking("/3"))
        assert statuses(await client.read_until(b"slow")) == [200]
        assert statuses(await client.read_until(b"slow")) == [200]


@contextlib.asynccontextmanager
async def hasty_clients(count: int, handler: Handler, connections: Connections) -> AsyncIterator[None]:
    """Remote clients that send the next request before they have read the response."""

    async def send_on(client: Client) -> None:
        while received := await client.read():
            await client.send(asking("/") * received.count(b"HTTP/1.1"))

    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connected(handler, connections, is_local=False))
            for _ in range(count)
        ]
        for client in clients:
            await client.send(asking("/") * 20)
        send_oning = [asyncio.create_task(send_on(client)) for client in clients]
        try:
            yield
        finally:
            for client, task in zip(clients, send_oning, strict=True):
                client.connection.abort()
                task.cancel()
            await asyncio.gather(*send_oning, return_exceptions=True)


async def test_remote_clients_that_ask_without_a_pause_keep_no_other_out() -> None:
    errors: list[ServingError] = []
    connections = Connections(ErrorLog(errors.append), max_remote=8)
    generous = Generous(100)
    async with hasty_clients(8, generous.answer, connections):
        await async_wait_until(lambda: generous.asked >= 40)
        for _ in range(8):
            async with connected(echo, connections, is_local=False) as other:
                await other.send(asking("/", "Connection: close"))
                assert statuses(await other.read_all()) == [200]
    assert errors == [ServingError.EVICTED] * len(errors)


@pytest.mark.parametrize("is_local", [True, False])
async def test_no_other_client_waits_for_remote_clients_that_ask_without_a_pause(is_local: bool) -> None:
    connections = Connections()
    generous = Generous(100)
    async with hasty_clients(100, generous.answer, connections):
        await async_wait_until(lambda: generous.asked >= 200)
        for _ in range(5):
            async with connected(echo, connections, is_local=is_local) as other:
                before = generous.asked
                await other.send(asking("/", "Connection: close"))
                assert statuses(await other.read_all()) == [200]
            assert generous.asked - before < 20


class Generous:
    """Gives long answers, and notes to whom."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked = 0
        self.was_asked = asyncio.Event()

    async def answer(self, _request: Request) -> Response:
        self.asked += 1
        self.was_asked.set()
        return text_response("x" * self.size)


async def test_no_response_is_prepared_for_a_client_that_does_not_read() -> None:
    generous = Generous(1 << 20)
    async with talking(generous.answer) as client:
        sender = asyncio.create_task(client.send(asking("/") * 100_000))
        await generous.was_asked.wait()
        for _ in range(1000):
            await asyncio.sleep(0)
        assert generous.asked <= 2
        assert not sender.done(), "the client had to stop sending, too"
        assert len(await client.read()) > 0
        client.connection.abort()
        await sender


async def test_a_client_that_does_not_read_is_not_kept_for_ever() -> None:
    generous = Generous(1 << 20)
    async with talking(generous.answer, Connections(idle_seconds=0.05)) as client:
        await client.send(asking("/"))
        await client.ended.wait()
        assert len(await client.read_all()) < generous.size


async def test_a_client_that_does_not_read_makes_room_for_another() -> None:
    generous = Generous(1 << 24)
    listener = Listener("test", generous.answer, connections=Connections(max_local=1))
    await listener.start("127.0.0.1:0")
    _, rude = await asyncio.open_connection(*listener.addresses[0], limit=1)
    rude.write(asking("/"))
    await generous.was_asked.wait()
    await asyncio.sleep(0.01)
    generous.size = 4
    reader, polite = await asyncio.open_connection(*listener.addresses[0])
    polite.write(asking("/"))
    assert (await reader.readuntil(b"xxxx")).startswith(b"HTTP/1.1 200 OK")
    for writer in (rude, polite):
        writer.close()
    await listener.stop()


async def test_the_oldest_unread_response_is_given_up_when_all_are_too_long_together() -> None:
    connections = Connections(max_unsent_bytes=3 << 20)
    generous = Generous(2 << 20)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(generous.answer, connections)) for _ in range(2)]
        for client in clients:
            generous.was_asked.clear()
            await client.send(asking("/"))
            await generous.was_asked.wait()
        await clients[0].ended.wait()
        assert len(await clients[1].read_until(b"x" * 1000)) > 0
        assert not clients[1].ended.is_set()


async def test_a_client_that_reads_slowly_gets_all_of_its_answer() -> None:
    generous = Generous(1 << 23)
    async with talking(generous.answer, Connections(idle_seconds=0.3)) as client:
        await client.send(asking("/", "Connection: close"))
        received = 0
        while part := await client.read(100_000):
            received += len(part)
            await asyncio.sleep(0.01)
    assert received > generous.size


async def test_a_client_that_is_still_sending_can_read_why_it_was_refused() -> None:
    listener = Listener("test", Generous(1).answer)
    await listener.start("127.0.0.1:0")
    reader, writer = await asyncio.open_connection(*listener.addresses[0])
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200_000)
    assert statuses(await reader.read()) == [431]
    writer.close()
    await listener.stop()
