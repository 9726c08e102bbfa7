"""A list-watch in protobuf, in JSON, and with servers that know only one of them."""

from __future__ import annotations

import logging
import struct
from typing import Any

import pytest
from tests.fake import protobuf as server_side
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import service
from tests.harness.waiting import async_wait_until
from tests.unit.kube.following import following, text

from pointsman.kube.formats import JSON, PREFER_PROTOBUF
from pointsman.model.objects import Service, Upsert

every_combination = pytest.mark.parametrize(
    ("watch_list", "speaks_protobuf", "accept"),
    [
        (watch_list, speaks, accept)
        for watch_list in (True, False)
        for speaks, accept in ((True, PREFER_PROTOBUF), (False, PREFER_PROTOBUF), (True, JSON))
    ],
)

pytestmark = pytest.mark.usefixtures("protocol")


def asked_for(server: FakeApiServer) -> set[str]:
    return {seen.headers["Accept"] for seen in server.requests}


@every_combination
async def test_the_same_events_in_every_format(watch_list: bool, speaks_protobuf: bool, accept: str) -> None:
    async with FakeApiServer(watch_list=watch_list, speaks_protobuf=speaks_protobuf) as server:
        server.chunk_size = 7
        for name in "abc":
            server.add(service(name))
        async with following(server, accept=accept, page_limit=2) as follower:
            initial = [text(event) for event in await follower.until_synced()]
            assert initial == ["+default/a@101", "+default/b@102", "+default/c@103", "synced Service"]
            server.update(service("a", externalIPs=["192.0.2.1"]))
            changed = await follower.next()
            assert isinstance(changed, Upsert)
            assert isinstance(changed.object, Service)
            assert changed.object.spec.external_ips == ["192.0.2.1"]
            server.delete("Service", "default/b")
            assert await follower.next_text() == "-default/b"
            server.send_bookmark("Service")
            server.send_error("Service", 500, "InternalError", "out of order")
            server.add(service("d"))
            assert await follower.next_text() == "+default/d@106"
            assert "500 out of order" in follower.status.last_error
            assert follower.status.failures_total == 1
    assert asked_for(server) == {accept}


@pytest.mark.parametrize("status", [406, 415])
@pytest.mark.parametrize("watch_list", [True, False], ids=["watchlist", "paged"])
async def test_a_server_that_refuses_protobuf_is_asked_for_json_and_only_this_kind(
    status: int, watch_list: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeApiServer(watch_list=watch_list) as server:
        server.add(service("a"))
        server.fail_next(status, path="services")
        with caplog.at_level(logging.INFO):
            async with following(server) as follower:
                initial = [text(event) for event in await follower.until_synced()]
                assert initial == ["+default/a@101", "synced Service"]
                server.add(service("b"))
                assert await follower.next_text() == "+default/b@102"
                assert follower.status.failures_total == 0
                assert follower.time.pauses == []
    first, *later = (seen.headers["Accept"] for seen in server.requests)
    assert first == PREFER_PROTOBUF
    assert set(later) == {JSON}
    assert any(seen.query.get("sendInitialEvents") for seen in server.requests[1:])
    assert "Protobuf not available" in caplog.text


async def test_a_server_that_refuses_json_too_is_a_failure_like_others() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        server.fail_next(406, path="services", times=3)
        async with following(server) as follower:
            assert [text(event) for event in await follower.until_synced()][-1] == "synced Service"
            assert follower.status.failures_total == 2


def frame(message: bytes) -> bytes:
    return struct.pack(">I", len(message)) + message


@pytest.mark.parametrize(
    "garbage",
    [
        frame(b""),
        frame(b"\x0a\x05ADD"),
        frame(b"\x0a\xff"),
        frame(b"\xff" * 12),
        frame(b"\x08\x01"),
        frame(b"{}"),
    ],
)
async def test_a_malformed_frame_leads_to_a_relist(garbage: bytes) -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_watching()
            server.send_raw("Service", garbage)
            await async_wait_until(lambda: follower.status.lists == 2 and server.watch_count() == 1)
            server.add(service("b"))
            assert await follower.next_text() == "+default/b@102"
            assert "unreadable event" in follower.status.last_error


@pytest.mark.parametrize("partial", [b"\x00\x00", b"\x00\x00\x01\x00\x0a\x05ADDED", b"{no frame at all"])
async def test_a_stream_broken_inside_a_frame_is_resumed_without_loss_or_repetition(partial: bytes) -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_watching()
            server.break_watches(partial=partial)
            await async_wait_until(lambda: len(server.requests) == 3 and server.watch_count() == 1)
            server.add(service("b"))
            assert await follower.next_text() == "+default/b@102"
            assert follower.status.lists == 1
            assert follower.status.failures_total == 1


@pytest.mark.parametrize("watch_list", [True, False], ids=["watchlist", "paged"])
async def test_an_object_that_does_not_fit_its_type_is_left_out_by_name(watch_list: bool) -> None:
    async with FakeApiServer(watch_list=watch_list) as server:
        server.add(service("a"))
        server.add(service("bad", ports=[{"port": "eighty"}], namespace="shop"))
        server.add(service("c"))
        async with following(server) as follower:
            texts = [text(event) for event in await follower.until_synced()]
            assert texts == ["+default/a@101", "+default/c@103", "synced Service"]
            (bad,) = follower.bad
            assert (bad.object.kind, bad.object.key, bad.code.value) == ("Service", "shop/bad", "Undecodable")
            assert "port has the wrong type" in str(bad.parameters["detail"])


async def test_an_error_in_protobuf_is_told_in_words() -> None:
    refusal: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "message": "not today", "code": 500}
    async with FakeApiServer(watch_list=False) as server:
        server.fail_next(500, path="services", body=server_side.document(refusal))
        async with following(server, watch_list=False) as follower:
            await follower.until_synced()
            assert "HTTP 500 Internal Server Error: not today" in follower.status.last_error
