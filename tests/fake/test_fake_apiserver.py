"""The fake API server keeps the promises that tests rely on; asked with a client of its own."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import endpoint_slice, node, service

ROOT = Path(__file__).parents[2]
SERVICES = "/api/v1/services"


async def ask(server: FakeApiServer, path: str, method: str = "GET", **options: Any) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.url + path, **options) as answer,
    ):
        return answer.status, await answer.json()


async def lines(response: aiohttp.ClientResponse, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(10):
        return [json.loads(await response.content.readline()) for _ in range(count)]


def kinds(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


async def test_list_pages_are_one_snapshot() -> None:
    async with FakeApiServer() as server:
        for number in range(5):
            server.add(service(f"s{number}"))
        _, first = await ask(server, f"{SERVICES}?limit=2")
        server.delete("Service", "default/s4")
        _, second = await ask(server, f"{SERVICES}?limit=9&continue={first['metadata']['continue']}")
        assert [item["metadata"]["name"] for item in second["items"]] == ["s2", "s3", "s4"]
        assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
        assert first["metadata"]["remainingItemCount"] == 3
        assert "continue" not in second["metadata"]


async def test_expired_page_is_410() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        server.add(service("b"))
        _, first = await ask(server, f"{SERVICES}?limit=1")
        server.expire_pages()
        status, body = await ask(server, f"{SERVICES}?continue={first['metadata']['continue']}")
        assert (status, body["reason"]) == (410, "Expired")


async def test_watch_replays_history_then_follows() -> None:
    async with FakeApiServer() as server, aiohttp.ClientSession() as session:
        server.add(service("a"))
        version = server.store.version
        server.add(service("b"))
        url = f"{server.url}{SERVICES}?watch=true&resourceVersion={version}"
        async with session.get(url) as response:
            assert kinds(await lines(response, 1)) == [("ADDED", "b")]
            server.update(service("a"))
            server.delete("Service", "default/b")
            server.send_bookmark("Service")
            seen = await lines(response, 3)
            assert kinds(seen) == [("MODIFIED", "a"), ("DELETED", "b"), ("BOOKMARK", "")]
            versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
            assert versions == sorted(versions)


async def test_watch_with_initial_events_ends_them_with_a_marked_bookmark() -> None:
    async with FakeApiServer() as server, aiohttp.ClientSession() as session:
        server.add(service("a"))
        async with session.get(f"{server.url}{SERVICES}?watch=true&sendInitialEvents=true") as response:
            added, bookmark = await lines(response, 2)
            assert added["type"] == "ADDED"
            assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        server.watch_list = False
        assert (await ask(server, f"{SERVICES}?watch=true&sendInitialEvents=true"))[0] == 422


async def test_compressed_events_are_flushed_before_their_gzip_member_ends() -> None:
    """A client in Go that finds data in the final block holds it back until the next member begins."""
    async with FakeApiServer() as server, aiohttp.ClientSession(auto_decompress=False) as session:
        url = f"{server.url}{SERVICES}?watch=true&sendInitialEvents=true"
        async with session.get(url, headers={"Accept-Encoding": "gzip"}) as response:
            member = await response.content.readany()
        flushed, empty_final_block, trailer = b"\0\0\xff\xff", b"\x03\0", 8
        assert json.loads(gzip.decompress(member))["type"] == "BOOKMARK"
        assert member[:-trailer].endswith(flushed + empty_final_block)


async def test_watch_from_a_compacted_version_gets_an_error_event() -> None:
    async with FakeApiServer() as server, aiohttp.ClientSession() as session:
        server.add(service("a"))
        server.compact()
        async with session.get(f"{server.url}{SERVICES}?watch=true&resourceVersion=101") as response:
            event = (await lines(response, 1))[0]
            assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
            assert await response.content.read() == b""


async def test_watch_ends_after_its_timeout() -> None:
    async with (
        FakeApiServer() as server,
        aiohttp.ClientSession(server.url) as session,
        session.get(f"{SERVICES}?watch=true&timeoutSeconds=0.05") as response,
    ):
        assert await response.content.read() == b""


async def test_broken_watch_ends_inside_a_line() -> None:
    async with (
        FakeApiServer() as server,
        aiohttp.ClientSession(server.url) as session,
        session.get(f"{SERVICES}?watch=true") as response,
    ):
        server.break_watches(partial=b'{"type":')
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()


async def test_selectors() -> None:
    labelled = service("other")
    labelled["metadata"]["labels"] = {"x": "1"}
    async with FakeApiServer() as server:
        for item in (labelled, service("headless", "None"), service("a"), node("n1"), node("n2")):
            server.add(item)

        async def names(path: str) -> list[str]:
            return [item["metadata"]["name"] for item in (await ask(server, path))[1]["items"]]

        assert await names(f"{SERVICES}?labelSelector=!x") == ["a", "headless"]
        assert await names(f"{SERVICES}?labelSelector=x%3D1") == ["other"]
        assert await names(f"{SERVICES}?fieldSelector=spec.clusterIP!=None") == ["a", "other"]
        assert await names("/api/v1/nodes?fieldSelector=metadata.name=n2") == ["n2"]
        server.cluster_ip_field = False
        assert (await ask(server, f"{SERVICES}?fieldSelector=spec.clusterIP!=None"))[0] == 400


async def test_object_leaving_a_selection_is_deleted_for_its_watchers() -> None:
    async with FakeApiServer() as server, aiohttp.ClientSession() as session:
        server.add(service("a"))
        url = f"{server.url}{SERVICES}?watch=true&resourceVersion=101&labelSelector=!x"
        async with session.get(url) as response:
            labelled = service("a")
            labelled["metadata"]["labels"] = {"x": "1"}
            server.update(labelled)
            server.update(service("a"))
            assert kinds(await lines(response, 2)) == [("DELETED", "a"), ("ADDED", "a")]


async def test_objects_are_created_changed_and_deleted_over_http() -> None:
    async with FakeApiServer() as server:
        path = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"
        item = endpoint_slice("web-1", "10.1.0.1", namespace="shop")
        assert (await ask(server, path, "POST", json=item))[0] == 201
        assert (await ask(server, path, "POST", json=item))[0] == 409
        patch = {"metadata": {"labels": {"a": "b", "kubernetes.io/service-name": None}}}
        _, changed = await ask(server, f"{path}/web-1", "PATCH", json=patch)
        assert changed["metadata"]["labels"] == {"a": "b"}
        assert (await ask(server, f"{path}/web-1"))[1]["metadata"]["resourceVersion"] == "102"
        assert (await ask(server, f"{path}/web-1", "DELETE"))[0] == 200
        assert (await ask(server, f"{path}/web-1"))[0] == 404
        assert (await ask(server, "/api/v1/pods"))[0] == 404


async def test_faults_hit_the_requests_they_name_and_then_end() -> None:
    async with FakeApiServer(token="t") as server:
        headers = {"Authorization": "Bearer t"}
        server.fail_next(503, path="nodes", times=2)
        assert (await ask(server, SERVICES, headers=headers))[0] == 200
        statuses = [(await ask(server, "/api/v1/nodes", headers=headers))[0] for _ in range(3)]
        assert statuses == [503, 503, 200]
        assert (await ask(server, SERVICES))[0] == 401


async def test_stop_and_start_keep_the_address_and_the_objects() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        url = server.url
        await server.stop()
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(server, SERVICES)
        await server.start()
        assert server.url == url
        assert len((await ask(server, SERVICES))[1]["items"]) == 1


def test_runs_as_a_process(tmp_path: Path) -> None:
    objects = tmp_path / "objects.json"
    objects.write_text(json.dumps({"kind": "List", "items": [service("a"), node("n1")]}), encoding="utf-8")
    command = [sys.executable, "-m", "tests.fake.serve_api", "--objects", str(objects)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()

            async def count() -> int:
                async with aiohttp.ClientSession() as session, session.get(f"{url}{SERVICES}") as answer:
                    return len((await answer.json())["items"])

            assert asyncio.run(count()) == 1
        finally:
            process.terminate()
