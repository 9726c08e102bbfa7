"""HTTP/2 to the API server: one connection for everything, and what may happen to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fake.apiserver import FakeApiServer
from tests.fake.certificates import server_tls
from tests.fake.http2_front import Http2Front
from tests.harness.kube_objects import node, service
from tests.harness.waiting import async_wait_until
from tests.unit.kube.consumer import consuming, wait_for_services, wait_for_watches
from tests.unit.kube.raw_servers import Answering, client_to, exchange, listening

from pointsman.errors import KubeError
from pointsman.http import http2
from pointsman.kube.access import Access
from pointsman.kube.client import ApiClient
from pointsman.kube.event_recorder import EventRecorder, refer_to_node

PATH = "/api/v1/services"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
WATCH = {"watch": "true"}


@asynccontextmanager
async def serving(pki: Path) -> AsyncIterator[tuple[FakeApiServer, Http2Front]]:
    async with FakeApiServer(http2=server_tls(pki)) as server:
        assert server.http2 is not None
        yield server, server.http2


async def read_of(client: ApiClient, path: str) -> bytes:
    """The first data of a watch."""
    async with client.stream(path, params=WATCH) as stream:
        return await stream.read()


async def test_watches_lists_and_events_share_one_connection(pki: Path) -> None:
    async with serving(pki) as (server, front):
        server.add(node("n1"))
        server.add(service("a"))
        async with consuming(server, watch_list=True) as consumer:
            await wait_for_services(consumer, "a")
            await wait_for_watches(server)
            recorder = EventRecorder(consumer.client, node_name="n1")
            sending = asyncio.create_task(recorder.run())
            recorder.record(refer_to_node("n1"), "Starting", "")
            await recorder.flush(10)
            sending.cancel()
            assert json.loads((await consumer.client.request("GET", PATH)).body)["items"]
        assert recorder.dropped == 0
        assert front.accepted == 1


async def test_requests_after_a_goaway_use_a_new_connection_and_open_streams_go_on(pki: Path) -> None:
    async with serving(pki) as (server, front), client_to(server.access) as client:
        async with client.stream(PATH, params=WATCH) as stream:
            (first,) = front.connections
            first.send_goaway()
            assert (await client.request("GET", PATH)).status == 200
            await async_wait_until(lambda: front.accepted == 2)
            server.send_raw("Service", b"still here")
            assert await stream.read() == b"still here"
            assert len(front.connections) == 2
        await async_wait_until(lambda: first not in front.connections)
        assert (await client.request("GET", PATH)).status == 200
        assert front.accepted == 2


async def test_a_request_that_a_goaway_leaves_out_is_sent_again_whatever_its_method(pki: Path) -> None:
    async with (
        serving(pki) as (server, front),
        client_to(server.access) as client,
        client.stream(PATH, params=WATCH),
    ):
        (first,) = front.connections
        server.answer_raw(b"", path="events", hold=True)
        posting = asyncio.create_task(client.request("POST", EVENTS, body=b'{"metadata":{"name":"e"}}'))
        await async_wait_until(lambda: any(seen.method == "POST" for seen in server.requests))
        first.send_goaway(last_stream=1)
        assert (await posting).status == 201
        assert front.accepted == 2


async def test_a_reset_stream_fails_alone(pki: Path) -> None:
    async with serving(pki) as (server, front), client_to(server.access) as client:
        async with client.stream(PATH, params=WATCH) as kept:
            reading = asyncio.ensure_future(read_of(client, "/api/v1/nodes"))
            await async_wait_until(lambda: server.watch_count("Node") == 1)
            server.break_watches("Node")
            with pytest.raises(KubeError, match=r"the server reset the stream \(INTERNAL_ERROR\)"):
                await reading
            server.send_raw("Service", b"x")
            assert await kept.read() == b"x"
        assert front.accepted == 1


async def test_as_many_streams_as_the_server_allows_use_a_connection(pki: Path) -> None:
    async with serving(pki) as (server, front):
        front.max_streams = 2
        server.add(node("n1"))
        async with consuming(server, watch_list=True) as consumer:
            await wait_for_watches(server)
            server.add(service("a"))
            await wait_for_services(consumer, "a")
            assert front.accepted == 2
            assert all(status.failures_total == 0 for status in consumer.source.statuses.values())


async def test_a_peer_that_answers_no_ping_is_given_up(pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "PING_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(http2, "PING_TIMEOUT_SECONDS", 0.2)
    async with serving(pki) as (server, front), client_to(server.access) as client:
        async with client.stream(PATH, params=WATCH) as stream:
            (connection,) = front.connections
            await asyncio.sleep(0.5)
            server.send_raw("Service", b"pings were answered")
            assert await stream.read() == b"pings were answered"
        reading = asyncio.ensure_future(read_of(client, "/api/v1/nodes"))
        await async_wait_until(lambda: server.watch_count("Node") == 1)
        await asyncio.sleep(0.3)
        connection.is_discarding = True
        with pytest.raises(KubeError, match=r"no answer to a ping within 0\.2 s"):
            await reading


async def test_a_response_that_is_not_read_stops_its_server_and_no_other_stream(pki: Path) -> None:
    piece = bytes(64 * 1024)
    async with serving(pki) as (server, _), client_to(server.access) as client:
        async with client.stream(PATH, params=WATCH) as unread:
            for _ in range(100):
                server.send_raw("Service", piece)
            for _ in range(5):
                assert (await client.request("GET", "/api/v1/nodes")).status == 200
            received = len(await unread.read())
            assert received <= http2.STREAM_WINDOW_BYTES
            while received < 100 * len(piece):
                received += len(await unread.read())
        assert received == 100 * len(piece)


async def test_abandoned_responses_do_not_use_up_the_connection(
    pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrives for a stream that was given up counts against the connection until it is acknowledged."""
    monkeypatch.setattr(http2, "_CONNECTION_WINDOW_BYTES", 2 * http2.STREAM_WINDOW_BYTES)
    async with serving(pki) as (server, front), client_to(server.access) as client:
        for _ in range(6):
            async with client.stream(PATH, params=WATCH):
                server.send_raw("Service", bytes(http2.STREAM_WINDOW_BYTES))
                await client.request("GET", "/api/v1/nodes")
        assert front.accepted == 1


async def test_long_lists_and_long_requests_arrive_whole(pki: Path) -> None:
    async with serving(pki) as (server, _), client_to(server.access) as client:
        note = "x" * 3_000_000
        item = {"metadata": {"name": "long", "namespace": "default"}, "note": note}
        await client.request("POST", EVENTS, body=json.dumps(item).encode())
        for compress in (False, True):
            async with client_to(replace(server.access, disable_compression=not compress)) as other:
                found = json.loads((await other.request("GET", EVENTS)).body)
            assert found["items"][0]["note"] == note


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_only_a_read_is_repeated_when_the_connection_turns_out_to_be_broken(
    pki: Path, method: str
) -> None:
    async with serving(pki) as (server, front), client_to(server.access) as client:
        await client.request("GET", PATH)
        (connection,) = front.connections
        server.answer_raw(b"", hold=True)
        asking = asyncio.create_task(client.request(method, EVENTS, body=b"{}" if method == "POST" else None))
        await async_wait_until(lambda: len(server.requests) == 2)
        connection.abort()
        if method == "GET":
            assert (await asking).status == 200
        else:
            with pytest.raises(KubeError, match="closed the connection"):
                await asking


async def test_a_connection_that_ended_while_idle_is_replaced(pki: Path) -> None:
    async with serving(pki) as (server, front), client_to(server.access) as client:
        await client.request("GET", PATH)
        (connection,) = front.connections
        connection.abort()
        await async_wait_until(lambda: not front.connections)
        assert (await client.request("POST", EVENTS, body=b'{"metadata":{"name":"e"}}')).status == 201


async def test_closing_the_client_ends_its_streams_and_its_connection(pki: Path) -> None:
    async with serving(pki) as (server, front):
        client = ApiClient(server.access, environ={})
        reading = asyncio.ensure_future(read_of(client, PATH))
        await async_wait_until(lambda: server.watch_count() == 1)
        await client.close()
        with pytest.raises(KubeError, match="the connection was closed"):
            await reading
        await async_wait_until(lambda: not front.connections)


async def test_new_credentials_mean_a_new_connection_and_open_streams_go_on(
    pki: Path, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "client.crt", tmp_path / "client.key"
    for source, target in (("client.crt", certificate), ("client.key", key)):
        target.write_bytes((pki / source).read_bytes())
    async with FakeApiServer(http2=server_tls(pki, demand_client=True)) as server:
        access = Access(server.url, "test", ca=pki / "ca.crt", client_certificate=certificate, client_key=key)
        assert server.http2 is not None
        async with client_to(access) as client, client.stream(PATH, params=WATCH) as stream:
            certificate.write_bytes((pki / "client.crt").read_bytes() + b"\n")
            assert (await client.request("GET", PATH)).status == 200
            assert server.http2.accepted == 2
            server.send_raw("Service", b"x")
            assert await stream.read() == b"x"


async def test_http2_can_be_disabled_as_for_kube_proxy(pki: Path) -> None:
    protocols: list[str | None] = []

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocols.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    tls = server_tls(pki)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    async with listening(answering, tls) as port:
        access = Access(f"https://127.0.0.1:{port}", "test", insecure_skip_tls_verify=True)
        client = ApiClient(access, environ={"DISABLE_HTTP2": "1"})
        assert (await client.request("GET", PATH)).body == b"{}"
        await client.close()
    assert protocols == ["http/1.1"]


SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def frame(
    kind: int, body: bytes = b"", *, flags: int = 0, stream: int = 0, length: int | None = None
) -> bytes:
    size = len(body) if length is None else length
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def response(*headers: tuple[str, str], end: bool = False, stream: int = 1) -> bytes:
    """The frames of a response's headers."""
    server = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False))
    encoded = server.encoder.encode(headers)
    return frame(1, encoded, flags=0x5 if end else 0x4, stream=stream)


OK = response((":status", "200"))
LIES = {
    "nothing": b"",
    "HTTP/1.1": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "settings alone": SETTINGS,
    "settings of a wrong size": frame(4, b"\x00\x03\x00"),
    "a window beyond all numbers": SETTINGS + frame(8, b"\x7f\xff\xff\xff") * 3,
    "a window update of nothing": SETTINGS + frame(8, bytes(4)),
    "a frame larger than allowed": SETTINGS + frame(0, b"", stream=1, length=0xFFFFFF),
    "data before headers": SETTINGS + frame(0, b"x", stream=1),
    "data for a stream that does not exist": SETTINGS + frame(0, b"x", stream=99),
    "headers for a stream that does not exist": SETTINGS + response((":status", "200"), stream=99),
    "headers that are not HPACK": SETTINGS + frame(1, b"\xff" * 40, flags=4, stream=1),
    "headers that expand without end": SETTINGS
    + response((":status", "200"), *[("x-lie", "y" * 4000)] * 500),
    "headers without end": SETTINGS + frame(1, b"", stream=1) + frame(9, b"", stream=1) * 2000,
    "no status": SETTINGS + response(("content-type", "text/plain")),
    "a status that is no number": SETTINGS + response((":status", "OK")),
    "a status beyond all numbers": SETTINGS + response((":status", "9" * 30)),
    "informational responses alone": SETTINGS + response((":status", "100")),
    "a second response": SETTINGS + OK + OK,
    "more than the window": SETTINGS + OK + frame(0, bytes(200_000), stream=1) * 12,
    "less than the length says": SETTINGS
    + response((":status", "200"), ("content-length", "500"))
    + frame(0, b"{", flags=1, stream=1),
    "more than the length says": SETTINGS
    + response((":status", "200"), ("content-length", "1"))
    + frame(0, b"{}", stream=1),
    "padding longer than the frame": SETTINGS + OK + frame(0, b"\xff{", flags=8, stream=1),
    "a push": SETTINGS + frame(5, b"\x00\x00\x00\x02\x82", flags=4, stream=1),
    "a reset": SETTINGS + frame(3, bytes(4), stream=1),
    "a reset with an unknown code": SETTINGS + frame(3, b"\xff" * 4, stream=1),
    "a goaway at once": SETTINGS + frame(7, bytes(8)),
    "a goaway with an unknown code": SETTINGS + frame(7, b"\x00\x00\x00\x01\xff\xff\xff\xff"),
    "pings without end": SETTINGS + frame(6, bytes(8)) * 5_000,
    "empty data without end": SETTINGS + OK + frame(0, b"", stream=1) * 50_000,
    "settings without end": SETTINGS * 5_000,
    "half a frame": SETTINGS + OK + frame(0, b"{", stream=1, length=100),
    "a continuation of nothing": SETTINGS + frame(9, b"", flags=4, stream=1),
    "unknown frames": SETTINGS + frame(0x77, b"x" * 100) * 10,
}


def lying(answer: bytes) -> Answering:
    async def answer_with(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()
        await asyncio.sleep(0.01)

    return answer_with


async def asked(pki: Path, answer: bytes, *, stream: bool) -> None:
    """One exchange; whatever is not a KubeError escapes."""
    tls = server_tls(pki)
    tls.set_alpn_protocols(["h2"])
    async with listening(lying(answer), tls) as port:
        access = Access(f"https://127.0.0.1:{port}", "test", insecure_skip_tls_verify=True)
        async with client_to(access) as client:
            error = await exchange(client, PATH, stream=stream)
            assert "not complete" not in str(error)


@pytest.mark.parametrize("stream", [False, True], ids=["request", "stream"])
@pytest.mark.parametrize("answer", LIES.values(), ids=LIES)
async def test_a_server_that_breaks_the_protocol(pki: Path, answer: bytes, stream: bool) -> None:
    await asked(pki, answer, stream=stream)


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.builds(
            frame,
            st.integers(0, 11),
            st.binary(max_size=40),
            flags=st.integers(0, 255),
            stream=st.sampled_from([0, 1, 1, 1, 2, 3]),
        )
        | st.just(OK),
        max_size=8,
    ),
    st.booleans(),
)
def test_any_frames_instead_of_a_response(pki: Path, frames: list[bytes], stream: bool) -> None:
    asyncio.run(asked(pki, SETTINGS + b"".join(frames), stream=stream))
