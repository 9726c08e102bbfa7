"""Binding, moving, limiting and stopping, with real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from tests.harness.waiting import async_wait_until

from pointsman.serve.connections import Connections, ErrorLog, ServingError
from pointsman.serve.listeners import BindFailed, Listener, open_socket, parse_bind_address
from pointsman.serve.messages import Request, Response, route, text_response, with_deadline
from pointsman.serve.server import HttpServer


async def hello(_request: Request) -> Response:
    return text_response("hello")


HANDLER = route({"/hello": hello})


def noted_in(failures: list[str]) -> Callable[[BindFailed], Awaitable[None]]:
    async def note(failure: BindFailed) -> None:
        failures.append(str(failure))

    return note


async def get(host: str, port: int, path: str = "/hello") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_known_paths_answer_and_others_are_404() -> None:
    listener = Listener("test", HANDLER)
    await listener.start("127.0.0.1:0")
    ((host, port),) = listener.addresses
    assert await get(host, port) == (200, "hello")
    assert await get(host, port, "/hello/") == (404, "404 page not found\n")
    await listener.stop()
    assert listener.addresses == ()


@pytest.mark.parametrize("wildcard", ["0.0.0.0:0", "[::]:0", ":0"])
async def test_a_wildcard_listens_on_both_families(wildcard: str) -> None:
    listener = Listener("test", HANDLER)
    await listener.start(wildcard)
    port = listener.addresses[0][1]
    assert (await get("127.0.0.1", port))[0] == 200
    if socket.has_ipv6:
        assert (await get("[::1]", port))[0] == 200
    await listener.stop()


async def test_a_specific_address_listens_there_only() -> None:
    listener = Listener("test", HANDLER)
    await listener.start("127.0.0.1:0")
    port = listener.addresses[0][1]
    for other in ("127.0.0.2", "[::1]"):
        with pytest.raises(aiohttp.ClientConnectionError):
            await get(other, port)
    await listener.stop()


def test_one_family_only_leaves_the_other_family_free() -> None:
    with open_socket("0.0.0.0", 0, only_family=True) as v4:
        port = v4.getsockname()[1]
        with open_socket("::", port, only_family=True) as v6:
            assert v6.getsockname()[1] == port


async def test_a_taken_port_is_reported_and_served_once_it_is_free(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[str] = []
    settled: list[bool] = []
    listener = Listener(
        "metrics server",
        HANDLER,
        on_bind_failure=noted_in(failures),
        on_settled=settled.append,
        retry_seconds=0.01,
    )
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        await listener.start(f"127.0.0.1:{port}")
        await async_wait_until(lambda: len(failures) >= 2)
        assert listener.addresses == ()
        assert settled == []
        assert f"failed to start metrics server on 127.0.0.1:{port}" in failures[0]
    await async_wait_until(lambda: bool(listener.addresses))
    assert await get("127.0.0.1", port) == (200, "hello")
    assert settled == [True]
    assert [record.getMessage().count("Cannot listen") for record in caplog.records].count(1) == 1
    await listener.stop()


async def test_with_hard_fail_a_taken_port_raises() -> None:
    failures: list[str] = []
    listener = Listener("healthz", HANDLER, hard_fail=True, on_bind_failure=noted_in(failures))
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(BindFailed, match="failed to start healthz on"):
            await listener.start(f"127.0.0.1:{holder.getsockname()[1]}")
    assert len(failures) == 1
    await listener.stop()


async def test_a_rejected_move_at_the_same_port_ends_as_listening() -> None:
    settled: list[bool] = []
    listener = Listener("test", HANDLER, hard_fail=True, on_settled=settled.append)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    await listener.start(f"127.0.0.1:{port}")
    with pytest.raises(BindFailed):
        await listener.rebind(f"192.0.2.1:{port}")
    assert listener.addresses == (("127.0.0.1", port),)
    assert settled == [True]
    await listener.stop()


async def test_rebinding_moves_and_the_same_address_is_left_alone() -> None:
    listener = Listener("test", HANDLER)
    await listener.start("127.0.0.1:0")
    before = listener.addresses
    await listener.rebind("127.0.0.1:0")
    assert listener.addresses == before
    await listener.rebind("127.0.0.2:0")
    assert listener.addresses[0][0] == "127.0.0.2"
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(*before[0])
    await listener.rebind("")
    assert listener.addresses == ()


@pytest.mark.virtual_time
async def test_stopping_ends_a_retry() -> None:
    settled: list[bool] = []
    listener = Listener("test", HANDLER, on_settled=settled.append, retry_seconds=0.001)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        await listener.start(f"127.0.0.1:{holder.getsockname()[1]}")
        await listener.stop()
    await asyncio.sleep(3600)
    assert listener.addresses == ()
    assert settled == [False]


async def test_a_handler_past_its_deadline_is_answered_503() -> None:
    async def slow(_request: Request) -> Response:
        await asyncio.Event().wait()
        return text_response("never")

    listener = Listener("test", with_deadline(slow, 0.01))
    await listener.start("127.0.0.1:0")
    assert (await get(*listener.addresses[0]))[0] == 503
    await listener.stop()


async def test_an_overlong_request_line_is_refused() -> None:
    listener = Listener("test", HANDLER)
    await listener.start("127.0.0.1:0")
    status, _ = await get(*listener.addresses[0], "/" + "x" * 20_000)
    assert status == 431
    await listener.stop()


async def test_a_new_connection_above_the_limit_replaces_the_longest_idle() -> None:
    now = [0.0]
    listener = Listener("test", HANDLER, connections=Connections(max_local=2, clock=lambda: now[0]))
    await listener.start("127.0.0.1:0")
    host, port = listener.addresses[0]
    reader, writer = await asyncio.open_connection(host, port)
    idle_reader, idle_writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
    now[0] += 2.0
    assert await get(host, port) == (200, "hello")
    assert await idle_reader.read() == b""
    writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
    for open_writer in (writer, idle_writer):
        open_writer.close()
    await listener.stop()


async def test_a_new_connection_is_refused_while_all_others_are_busy() -> None:
    asked, going_on = asyncio.Event(), asyncio.Event()

    async def slow(_request: Request) -> Response:
        asked.set()
        await going_on.wait()
        return text_response("slow")

    errors: list[ServingError] = []
    listener = Listener("test", slow, connections=Connections(ErrorLog(errors.append), max_local=1))
    await listener.start("127.0.0.1:0")
    host, port = listener.addresses[0]
    first = asyncio.create_task(get(host, port))
    await asked.wait()
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(host, port)
    going_on.set()
    assert await first == (200, "slow")
    assert ServingError.REFUSED in errors
    await listener.stop()


async def test_accepting_goes_on_after_a_lack_of_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[ServingError] = []
    listener = Listener("test", HANDLER, connections=Connections(ErrorLog(errors.append)))
    await listener.start("127.0.0.1:0")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.closing(socket.socket()) as client:
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            await asyncio.get_running_loop().sock_connect(client, listener.addresses[0])
            await async_wait_until(lambda: errors.count(ServingError.ACCEPT_FAILED) >= 2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.send(b"GET /hello HTTP/1.0\r\n\r\n")
        assert (await asyncio.get_running_loop().sock_recv(client, 100)).startswith(b"HTTP/1.0 200")
    assert [record.message for record in caplog.records] == ["Cannot accept connections"]
    await listener.stop()


async def test_an_error_of_ours_is_answered_500_and_its_traceback_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_request: Request) -> Response:
        raise ZeroDivisionError

    listener = Listener("test", broken)
    await listener.start("127.0.0.1:0")
    assert [(await get(*listener.addresses[0]))[0] for _ in range(3)] == [500, 500, 500]
    assert [record.exc_info is not None for record in caplog.records] == [True]
    await listener.stop()


async def test_a_connection_without_a_request_is_ended() -> None:
    listener = Listener("test", HANDLER, connections=Connections(idle_seconds=0.05))
    await listener.start("127.0.0.1:0")
    reader, writer = await asyncio.open_connection(*listener.addresses[0])
    writer.write(b"GET /hello HTTP/1.1\r\nHost: x")
    assert await reader.read() == b""
    writer.close()
    await listener.stop()


@pytest.mark.parametrize(
    "address", ["10249", "127.0.0.1", "127.0.0.1:x", "localhost:1", "127.0.0.1:70000", "1.2.3.4:"]
)
def test_an_unreadable_bind_address_says_what_is_wrong(address: str) -> None:
    with pytest.raises(BindFailed, match="bind address"):
        parse_bind_address(address)


def test_bind_addresses_split_into_host_and_port() -> None:
    assert parse_bind_address("[::1]:10249") == ("::1", 10249)
    assert parse_bind_address("0.0.0.0:10256") == ("0.0.0.0", 10256)


async def test_a_connection_that_arrives_while_the_server_closes_ends_without_an_error() -> None:
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, details: complaints.append(details))
    loop.set_debug(True)
    server = HttpServer(HANDLER, Connections())
    server.serve([open_socket("127.0.0.1", 0)])
    with socket.create_connection(server.addresses[0]) as client:
        await asyncio.sleep(0)  # the loop learns of the connection
        await asyncio.sleep(0)  # it is accepted, and its transport is about to be made
        await server.close()
        client.setblocking(False)
        async with asyncio.timeout(5):
            assert await loop.sock_recv(client, 1) == b""
    assert complaints == []
