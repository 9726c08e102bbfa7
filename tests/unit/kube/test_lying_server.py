"""A server that lies in every form: nothing of it leaves the client untyped, and the truth arrives afterwards."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import endpoint_slice, node, service
from tests.unit.kube.consumer import consuming, wait_for_services, wait_for_watches
from tests.unit.kube.lies import LIES, Lie, chunked, http, listing
from tests.unit.kube.raw_servers import exchange

from pointsman.kube.client import ApiClient

PATH = "/api/v1/services"
LONGEST_PAUSE = 60.0


def told_to_wait(lie: Lie) -> bool:
    return b"Retry-After: 9" in lie.answer or b"Retry-After: 8" in lie.answer


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("watch_list", [True, False], ids=["watchlist", "paged"])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
async def test_what_is_true_arrives_after_a_lie(lie: Lie, watch_list: bool) -> None:
    async with FakeApiServer(watch_list=watch_list) as server:
        server.add(node("n1"))
        server.add(service("before"))
        server.add(endpoint_slice("before-1", "10.1.0.1"))
        patience = 0.3 if lie.hold else 30.0
        async with consuming(server, watch_list=watch_list, patience=patience) as consumer:
            await wait_for_services(consumer, "before")
            await wait_for_watches(server)
            server.answer_raw(lie.answer, path="services", times=3, watch=lie.watch or None, hold=lie.hold)
            if not lie.watch:
                server.compact()
            server.break_watches("Service")
            server.add(service("after"))
            await wait_for_services(consumer, "before", "after")
            statuses = consumer.source.statuses
            if not lie.hold:
                assert statuses["EndpointSlice"].failures_total == 0
            assert max(consumer.time.pauses, default=0.0) <= LONGEST_PAUSE
            if told_to_wait(lie):
                assert statuses["Service"].failures_total >= 1


async def _asked(answer: bytes, *, stream: bool) -> None:
    """One exchange; whatever is not a KubeError escapes."""
    async with FakeApiServer() as server:
        server.answer_raw(answer, times=2)
        client = ApiClient(server.access, qps=0, environ={})
        try:
            await exchange(client, PATH, stream=stream)
        finally:
            await client.close()


FUZZ = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@FUZZ
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_instead_of_http(answer: bytes, stream: bool) -> None:
    asyncio.run(_asked(answer, stream=stream))


_TOKEN = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=30)


@FUZZ
@given(
    status=st.integers(0, 1200),
    reason=_TOKEN,
    headers=st.dictionaries(
        st.sampled_from(
            [
                "Content-Encoding",
                "Content-Length",
                "Transfer-Encoding",
                "Retry-After",
                "Content-Type",
                "Connection",
                "Location",
                "Set-Cookie",
                "WWW-Authenticate",
            ]
        ),
        _TOKEN | st.sampled_from(["gzip", "deflate", "chunked", "identity", "close", "5", "0"]),
        max_size=4,
    ),
    body=st.binary(max_size=100),
    stream=st.booleans(),
)
def test_any_status_headers_and_body(
    status: int, reason: str, headers: dict[str, str], body: bytes, stream: bool
) -> None:
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
    asyncio.run(_asked("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body, stream=stream))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "name", "namespace", "resourceVersion", "continue", "items", "spec", "ports"]
            )
            | st.text(max_size=6),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


async def _followed(answer: bytes, *, watch: bool) -> None:
    async with FakeApiServer() as server:
        server.add(node("n1"))
        server.add(service("before"))
        server.answer_raw(answer, path="services", watch=watch, times=2)
        async with consuming(server, watch_list=False) as consumer:
            await wait_for_services(consumer, "before")
            server.add(service("after"))
            await wait_for_services(consumer, "after")


@FUZZ
@given(_JSON)
def test_any_json_instead_of_a_list(content: Any) -> None:
    asyncio.run(_followed(http(json.dumps(content).encode()), watch=False))


@FUZZ
@given(
    _JSON, st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "ODD"]) | st.text(max_size=5)
)
def test_any_json_in_a_watch(content: Any, type_: str) -> None:
    data = json.dumps({"type": type_, "object": content}).encode() + b"\n"
    asyncio.run(_followed(chunked(data), watch=True))


@FUZZ
@given(st.binary(max_size=200), st.binary(max_size=20), st.integers(0, 400))
def test_a_list_with_any_bytes_inside(noise: bytes, more: bytes, where: int) -> None:
    honest = listing()
    body = honest[:where] + noise + honest[where:] + more
    asyncio.run(_followed(http(body), watch=False))
