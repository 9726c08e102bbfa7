"""HTTP/1.1 as clients use it, byte by byte."""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import re
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.serve.client import Client, asking, echo, statuses, talking, undated

from pointsman.serve.connections import Closable, Connections, ErrorLog, ServingError
from pointsman.serve.listeners import open_socket
from pointsman.serve.messages import Request, Response, text_response
from pointsman.serve.server import HttpServer, format_http_date

CHUNKED = b"PUT /chunked HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
REQUESTS = (
    asking("/"),
    asking("/a%20b?x=1&x=2&y", "X-Long: " + "x" * 100),
    asking("/", method="HEAD"),
    asking("/put", method="PUT", body=b"body\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
    asking("/", "Upgrade: h2c", "Connection: Upgrade"),
    CHUNKED,
)
LAST = asking("/last", "Connection: close")


async def answers(*pieces: bytes) -> bytes:
    """All that comes back when these pieces are sent, each read on its own."""
    async with talking() as client:
        for piece in pieces:
            await client.send(piece)
            for _ in range(3):
                await asyncio.sleep(0)
        client.sock.shutdown(socket.SHUT_WR)
        return undated(await client.read_all())


async def test_an_answer_has_the_headers_it_always_had() -> None:
    received = await answers(LAST)
    assert re.sub(rb"(?s)\r\n\r\n.*", b"", received).split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: text/plain; charset=utf-8",
        b"X-Content-Type-Options: nosniff",
        b"Content-Length: 16",
        b"Connection: close",
    ]
    assert received.endswith(b"GET /last {} b''")


@given(st.integers(min_value=0, max_value=2**33))
def test_dates_are_written_as_in_mail(moment: int) -> None:
    assert format_http_date(moment) == email.utils.formatdate(moment, usegmt=True)


@given(st.lists(st.sampled_from(REQUESTS), max_size=4), st.data())
def test_requests_cut_anywhere_get_the_same_answers(requests: list[bytes], data: st.DataObject) -> None:
    whole = b"".join([*requests, LAST])
    places = st.lists(st.integers(min_value=0, max_value=len(whole)), max_size=12)
    cuts = [0, *sorted(data.draw(places)), len(whole)]
    pieces = [whole[start:end] for start, end in itertools.pairwise(cuts)]

    async def both() -> None:
        assert await answers(*filter(None, pieces)) == await answers(whole)

    asyncio.run(both())


async def test_requests_one_byte_at_a_time_are_all_answered() -> None:
    received = await answers(*(bytes([byte]) for byte in b"".join([*REQUESTS, LAST])))
    assert statuses(received) == [200] * 7
    assert b"PUT /chunked {} b'abcde'" in received
    assert b"GET /a b {'x': '1', 'y': ''}" in received


async def test_requests_sent_at_once_are_answered_one_after_the_other() -> None:
    running: list[str] = []
    seen: list[list[str]] = []

    async def slow(request: Request) -> Response:
        running.append(request.path)
        seen.append(list(running))
        await asyncio.sleep(0.001)
        running.remove(request.path)
        return await echo(request)

    async with talking(slow) as client:
        await client.send(b"".join(asking(f"/{number}") for number in range(9)) + LAST)
        received = await client.read_all()
    assert seen == [*([f"/{number}"] for number in range(9)), ["/last"]]
    assert re.findall(rb"GET (/\w+)", received) == [*(b"/%d" % number for number in range(9)), b"/last"]


async def test_requests_sent_while_an_answer_is_made_have_their_turn() -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()
    going_on = asyncio.Event()

    async def slow(request: Request) -> Response:
        asked.put_nowait(request.path)
        await going_on.wait()
        return await echo(request)

    async with talking(slow) as client:
        await client.send(asking("/1"))
        assert await asked.get() == "/1"
        for path in ("/2", "/3"):
            await client.send(asking(path))
            await asyncio.sleep(0.01)
        going_on.set()
        assert await asked.get() == "/2"
        assert await asked.get() == "/3"
        await client.send(LAST)
        assert statuses(await client.read_all()) == [200] * 4


async def test_a_connection_goes_on_until_the_client_asks_for_its_end() -> None:
    async with talking() as client:
        for path in ("/one", "/two"):
            await client.send(asking(path))
            assert statuses(await client.read_until(b"b''")) == [200]
        await client.send(LAST)
        assert b"Connection: close\r\n" in await client.read_all()


async def test_the_answer_to_head_is_that_to_get_without_its_body() -> None:
    got, headed = await answers(asking("/x")), await answers(asking("/x", method="HEAD"))
    length = len(b"GET /x {} b''")
    assert headed == got[:-length].replace(b": %d\r\n" % length, b": %d\r\n" % (length + 1))


@pytest.mark.parametrize("extra", [b"", b"Connection: keep-alive\r\n", b"Host: x\r\n"])
async def test_http_1_0_is_answered_in_kind_and_the_connection_ended(extra: bytes) -> None:
    async with talking() as client:
        await client.send(b"GET /old HTTP/1.0\r\n" + extra + b"\r\n")
        received = await client.read_all()
    assert received.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"Connection: close\r\n" in received


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    head = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    async with talking() as client:
        await client.send(head)
        assert await client.read() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"body")
        assert (await client.read_until(b"'body'")).startswith(b"HTTP/1.1 200 OK")
        await client.send(head.replace(b" 4\r", b" 4000000\r"))
        assert statuses(await client.read_all()) == [413]


async def test_a_request_with_two_lengths_is_answered_and_the_connection_closed() -> None:
    both = CHUNKED.replace(b"Host: x", b"Host: x\r\nContent-Length: 4")
    async with talking() as client:
        await client.send(both + asking("/smuggled"))
        received = await client.read_all()
    assert statuses(received) == [200]
    assert b"Connection: close\r\n" in received
    assert received.endswith(b"PUT /chunked {} b'abcde'")


async def test_a_client_that_has_said_all_still_hears_every_answer() -> None:
    going_on = asyncio.Event()

    async def slow(request: Request) -> Response:
        await going_on.wait()
        return await echo(request)

    async with talking(slow) as client:
        await client.send(asking("/1") + asking("/2"))
        client.sock.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.01)
        going_on.set()
        assert statuses(await client.read_all()) == [200, 200]


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"]
)
async def test_a_client_that_leaves_in_the_middle_is_no_error(sent: bytes) -> None:
    errors: list[ServingError] = []
    async with talking(connections=Connections(ErrorLog(errors.append))) as client:
        await client.send(sent)
        client.sock.shutdown(socket.SHUT_WR)
        assert await client.read_all() == b""
    assert errors == []


async def test_an_error_of_ours_is_answered_and_the_connection_goes_on() -> None:
    async def broken(request: Request) -> Response:
        if request.path == "/header":
            return Response(200, b"", {"X-Bad": "a\r\nb"})
        if request.path == "/error":
            raise ZeroDivisionError
        return await echo(request)

    errors: list[ServingError] = []
    async with talking(broken, Connections(ErrorLog(errors.append))) as client:
        await client.send(asking("/error") + asking("/header") + LAST)
        assert statuses(await client.read_all()) == [500, 500, 200]
    assert errors == [ServingError.HANDLER_FAILED] * 2


async def test_a_handler_that_is_cancelled_ends_its_connection() -> None:
    async def cancelled(_request: Request) -> Response:
        raise asyncio.CancelledError

    async with talking(cancelled) as client:
        await client.send(asking("/"))
        assert await client.read_all() == b""


class Counted(Connections):
    """Counts connections that end."""

    ended = 0

    def remove(self, connection: Closable) -> None:
        self.ended += 1
        super().remove(connection)


async def test_the_answer_for_a_lost_client_is_given_up() -> None:
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def endless(_request: Request) -> Response:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        return text_response("never")

    errors: list[ServingError] = []
    connections = Counted(ErrorLog(errors.append))
    server = HttpServer(endless, connections)
    server.serve([open_socket("127.0.0.1", 0)])
    with socket.create_connection(server.addresses[0]) as client:
        client.send(asking("/"))
        await asked.wait()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with asyncio.timeout(5):
        await given_up.wait()
    await server.close()
    assert connections.ended == 1
    assert errors == []


async def close_while(client: Client, *, sent: bytes) -> bytes:
    await client.send(sent)
    await asyncio.sleep(0.01)
    client.connection.finish()
    return await client.read_all()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n"])
async def test_a_connection_without_a_request_retires_at_once(sent: bytes) -> None:
    async with talking() as client:
        assert await close_while(client, sent=sent) == b""


async def test_an_answer_that_is_being_made_is_the_last_when_the_server_closes() -> None:
    asked, going_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Response:
        asked.set()
        await going_on.wait()
        return await echo(request)

    before = asyncio.all_tasks()
    connections = Counted()
    server = HttpServer(slow, connections)
    server.serve([open_socket("127.0.0.1", 0)])
    address = server.addresses[0]
    idle_reader, idle_writer = await asyncio.open_connection(*address)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(asking("/1") + asking("/2"))
    await asked.wait()
    closing = asyncio.create_task(server.close())
    assert await idle_reader.read() == b""
    assert not closing.done()
    going_on.set()
    received = await reader.read()
    await closing
    assert statuses(received) == [200]
    assert b"Connection: close\r\n" in received
    assert connections.ended == 2
    for each in (idle_writer, writer):
        each.close()
        await each.wait_closed()
    assert asyncio.all_tasks() == before


async def test_an_answer_without_end_does_not_keep_the_server_from_closing() -> None:
    asked = asyncio.Event()

    async def endless(_request: Request) -> Response:
        asked.set()
        await asyncio.Event().wait()
        return text_response("never")

    before = asyncio.all_tasks()
    server = HttpServer(endless, Connections())
    server.serve([open_socket("127.0.0.1", 0)])
    with socket.create_connection(server.addresses[0]) as client:
        client.send(asking("/"))
        await asked.wait()
        async with asyncio.timeout(10):
            await server.close()
        assert client.recv(1) == b""
    assert asyncio.all_tasks() == before
