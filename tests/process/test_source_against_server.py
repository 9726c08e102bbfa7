"""The API source end to end, over HTTP only: against the fake server always, against a real one where given.

Set KUBECONFIG (a file) or KUBE_APISERVER_URL (a server that needs no credentials) to include a real API server.
The test creates objects with unique names in namespace `default` and removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import endpoint_slice, node, service
from tests.harness.pages import split_page

from pointsman.errors import KubeError
from pointsman.http.messages import Response
from pointsman.kube.access import Access
from pointsman.kube.client import ApiClient
from pointsman.kube.event_recorder import EventRecorder, refer_to_node
from pointsman.kube.formats import JSON, PREFER_PROTOBUF, Decoders
from pointsman.kube.kubeconfig import load_access
from pointsman.kube.resources import ENDPOINT_SLICES, SERVICES
from pointsman.kube.status import WatchStatus
from pointsman.kube.watch import ListWatch
from pointsman.model.objects import (
    Delete,
    EndpointSlice,
    Node,
    Service,
    ServiceCIDR,
    SourceEvent,
    Synced,
    Upsert,
)
from pointsman.source.api import ApiSource

SERVICE_PATH = "/api/v1/namespaces/default/services"
SLICE_PATH = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
NODE_PATH = "/api/v1/nodes"
EVENT_PATH = "/apis/events.k8s.io/v1/namespaces/default/events"

REAL_KUBECONFIG = os.environ.get("KUBECONFIG", "")
REAL_URL = os.environ.get("KUBE_APISERVER_URL", "")

needs_real_server = pytest.mark.skipif(
    not (REAL_KUBECONFIG or REAL_URL), reason="no real API server: set KUBECONFIG or KUBE_APISERVER_URL"
)
real_server = pytest.param("real", marks=needs_real_server)
every_server = pytest.mark.parametrize("which", ["fake", "fake-without-watch-list", real_server])
both_formats = pytest.mark.parametrize("accept", [PREFER_PROTOBUF, JSON], ids=["protobuf", "json"])


class Cluster:
    """A server to test against, and what to remove from it afterwards."""

    def __init__(self, client: ApiClient, *, allocates: bool) -> None:
        self.client = client
        self.allocates = allocates
        """The server gives cluster IPs to Services."""
        self.prefix = f"pointsman-test-{uuid.uuid4().hex[:10]}"
        self._created: list[str] = []

    async def create(self, path: str, item: dict[str, Any]) -> None:
        await self.client.request("POST", path, body=json.dumps(item).encode())
        self.adopt(f"{path}/{item['metadata']['name']}")

    def adopt(self, path: str) -> None:
        """Removes this at the end, too."""
        self._created.append(path)

    async def patch(self, path: str, patch: dict[str, Any]) -> None:
        await self.client.request(
            "PATCH", path, body=json.dumps(patch).encode(), content_type="application/merge-patch+json"
        )

    async def delete(self, path: str) -> None:
        await self.client.request("DELETE", path)
        self._created.remove(path)

    async def clean_up(self) -> None:
        for path in list(self._created):
            with contextlib.suppress(KubeError):
                await self.delete(path)


@asynccontextmanager
async def events_of(watch: ListWatch[Any]) -> AsyncIterator[AsyncIterator[SourceEvent]]:
    queue: asyncio.Queue[SourceEvent] = asyncio.Queue()
    following = asyncio.ensure_future(watch.follow(queue.put))

    async def events() -> AsyncIterator[SourceEvent]:
        while True:
            yield await queue.get()

    try:
        yield events()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


unlimited = partial(ApiClient, qps=0)


@asynccontextmanager
async def cluster(which: str, client_to: Callable[[Access], ApiClient] = unlimited) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        if which == "real":
            access = load_access(REAL_KUBECONFIG, REAL_URL)
        else:
            server = FakeApiServer(watch_list=which == "fake")
            await stack.enter_async_context(server)
            access = Access(server.url, "fake API server")
        client = client_to(access)
        stack.push_async_callback(client.close)
        target = Cluster(client, allocates=which == "real")
        stack.push_async_callback(target.clean_up)
        yield target


def own_service(target: Cluster, name: str) -> dict[str, Any]:
    item = service(f"{target.prefix}-{name}")
    if target.allocates:
        del item["spec"]["clusterIP"], item["spec"]["clusterIPs"], item["status"]
    return item


async def wait_for(stream: Any, wanted: type[SourceEvent], name: str) -> Any:
    """The next event of this type about this object; others (a busy cluster's) are passed over."""
    async with asyncio.timeout(30):
        async for event in stream:
            key = event.object.metadata.key if isinstance(event, Upsert) else getattr(event, "key", "")
            if isinstance(event, wanted) and key.endswith(name):
                return event
    raise AssertionError("the source ended")


@both_formats
@every_server
async def test_objects_come_change_and_go(which: str, accept: str) -> None:
    async with cluster(which) as target:
        name = f"{target.prefix}-web"
        await target.create(NODE_PATH, node(f"{target.prefix}-node"))
        await target.create(SERVICE_PATH, own_service(target, "web"))
        await target.create(SLICE_PATH, endpoint_slice(f"{name}-1", "10.1.0.1", service_name=name))
        source = ApiSource(target.client, node_name=f"{target.prefix}-node", accept=accept)
        async with aclosing(source.events()) as stream:
            objects: set[tuple[type, str]] = set()
            synced: set[type] = set()
            async with asyncio.timeout(60):
                while len(synced) < 4:
                    event = await anext(stream)
                    if isinstance(event, Upsert):
                        objects.add((type(event.object), event.object.metadata.key))
                    elif isinstance(event, Synced):
                        synced.add(event.kind)
            assert {
                (Node, f"{target.prefix}-node"),
                (Service, f"default/{name}"),
                (EndpointSlice, f"default/{name}-1"),
            } <= objects
            assert synced == {Node, Service, EndpointSlice, ServiceCIDR}

            await target.create(SERVICE_PATH, own_service(target, "late"))
            late = await wait_for(stream, Upsert, f"{target.prefix}-late")
            assert late.object.spec.cluster_ip

            patch = {"endpoints": [{"addresses": ["10.1.0.2"], "conditions": {"ready": False}}]}
            await target.patch(f"{SLICE_PATH}/{name}-1", patch)
            changed = await wait_for(stream, Upsert, f"{name}-1")
            assert changed.object.endpoints[0].addresses == ["10.1.0.2"]
            assert changed.object.endpoints[0].conditions.ready is False

            await target.patch(
                f"{SERVICE_PATH}/{name}",
                {"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "another"}}},
            )
            await wait_for(stream, Delete, name)
            await target.delete(f"{SLICE_PATH}/{name}-1")
            await wait_for(stream, Delete, f"{name}-1")
            assert all(status.failures_total == 0 for status in source.statuses.values())


@both_formats
@every_server
async def test_small_pages_deliver_everything_once(which: str, accept: str) -> None:
    async with cluster(which) as target:
        names = {f"{target.prefix}-{number}" for number in range(7)}
        for number in range(7):
            await target.create(SERVICE_PATH, own_service(target, str(number)))
        watch = ListWatch(
            target.client,
            SERVICES,
            status=WatchStatus(),
            on_finding=lambda _finding: None,
            accept=accept,
            watch_list=False,
            page_limit=2,
        )
        seen: list[tuple[str, str]] = []
        async with events_of(watch) as stream, asyncio.timeout(60):
            async for event in stream:
                if isinstance(event, Synced):
                    break
                assert isinstance(event, Upsert)
                seen.append((event.object.metadata.namespace, event.object.metadata.name))
        assert names <= {name for _, name in seen}
        assert len(seen) == len(set(seen))


@every_server
async def test_events_are_accepted_and_repetitions_counted(which: str) -> None:
    async with cluster(which) as target:
        name = f"{target.prefix}-node"
        recorder = EventRecorder(target.client, node_name=name)
        sending = asyncio.create_task(recorder.run())
        for _ in range(2):
            recorder.record(refer_to_node(name), "Starting", "")
        recorder.record(refer_to_node(name), "FailedToStartMetricServer", "port in use", warning=True)
        await recorder.flush(20)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        events = json.loads((await target.client.request("GET", EVENT_PATH)).body)["items"]
        own = {event["reason"]: event for event in events if event["regarding"].get("name") == name}
        for event in own.values():
            target.adopt(f"{EVENT_PATH}/{event['metadata']['name']}")
        assert recorder.dropped == 0
        assert own["Starting"]["series"]["count"] == 2
        assert own["FailedToStartMetricServer"]["type"] == "Warning"
        assert own["FailedToStartMetricServer"]["reportingInstance"] == f"kube-proxy-{name}"


@every_server
async def test_every_object_is_the_same_in_both_formats(which: str) -> None:
    async with cluster(which) as target:
        name = f"{target.prefix}-web"
        await target.create(SERVICE_PATH, own_service(target, "web"))
        await target.create(SLICE_PATH, endpoint_slice(f"{name}-1", "10.1.0.1", service_name=name))
        for resource in (SERVICES, ENDPOINT_SLICES):
            decoders: Decoders[Any] = Decoders(resource.kind)
            pages = []
            for accept in (PREFER_PROTOBUF, JSON):
                answer = await target.client.request("GET", resource.path, accept=accept)
                assert answer.headers["Content-Type"].startswith(accept.partition(",")[0])
                page = decoders.for_answer(answer.headers["Content-Type"]).decode_page(answer.body)
                pages.append(split_page(page)[0])
            assert pages[0] == pages[1]
            assert any(item.metadata.name.startswith(name) for item in pages[0])


@pytest.mark.parametrize("which", ["fake", real_server])
async def test_a_watch_in_protobuf_resumes_where_a_list_ended(which: str) -> None:
    async with cluster(which) as target:
        await target.create(SLICE_PATH, endpoint_slice(f"{target.prefix}-1", "10.1.0.1"))
        decoders: Decoders[EndpointSlice] = Decoders(EndpointSlice)
        listed = await target.client.request("GET", ENDPOINT_SLICES.path, accept=PREFER_PROTOBUF)
        page = decoders.for_answer(listed.headers["Content-Type"]).decode_page(listed.body)
        await target.create(SLICE_PATH, endpoint_slice(f"{target.prefix}-2", "10.1.0.2"))

        async def watched(version: str) -> list[tuple[str, Any]]:
            params = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "2"}
            found = []
            async with target.client.stream(
                ENDPOINT_SLICES.path, params=params, accept=PREFER_PROTOBUF
            ) as stream:
                decoder = decoders.for_answer(stream.content_type)
                splitter = decoder.make_splitter()
                while chunk := await stream.read():
                    for frame in splitter.feed(chunk):
                        event = decoder.decode_event(frame)
                        found.append((event.type, decoder.decode_object(event.object)))
            return found

        resumed = await watched(page.metadata.resource_version)
        assert ("ADDED", f"{target.prefix}-2") in [(type_, item.metadata.name) for type_, item in resumed]
        assert f"{target.prefix}-1" not in [item.metadata.name for _, item in resumed]


class RecordingClient(ApiClient):
    """Keeps the parameters of every stream, the type of what came back, and the paths that were listed instead."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, qps=0)
        self.streamed: list[tuple[dict[str, str], str]] = []
        self.listed: list[str] = []

    async def request(self, method: str, path: str, **options: Any) -> Response:
        if method == "GET":
            self.listed.append(path)
        return await super().request(method, path, **options)

    @asynccontextmanager
    async def stream(self, path: str, **options: Any) -> AsyncIterator[Response]:
        async with super().stream(path, **options) as stream:
            self.streamed.append((dict(options["params"]), stream.content_type))
            yield stream


@pytest.mark.parametrize("which", ["fake", real_server])
async def test_the_first_list_is_streamed_in_protobuf(which: str) -> None:
    async with cluster(which, RecordingClient) as target:
        client = target.client
        assert isinstance(client, RecordingClient)
        for number in range(3):
            await target.create(SERVICE_PATH, own_service(target, str(number)))
        status = WatchStatus()
        watch = ListWatch(client, SERVICES, status=status, on_finding=lambda _finding: None)
        seen: set[str] = set()
        async with events_of(watch) as stream, asyncio.timeout(60):
            async for event in stream:
                if isinstance(event, Synced):
                    break
                assert isinstance(event, Upsert)
                seen.add(event.object.metadata.name)
            if which == "real" and client.listed:
                pytest.skip("this server refuses streamed lists; its etcd may be too old")
            await target.create(SERVICE_PATH, own_service(target, "late"))
            late = await wait_for(stream, Upsert, f"{target.prefix}-late")
        assert {f"{target.prefix}-{number}" for number in range(3)} <= seen
        assert late.object.spec.cluster_ip
        assert client.listed == []
        (params, content_type), *_ = client.streamed
        assert params["sendInitialEvents"] == "true"
        assert content_type.startswith("application/vnd.kubernetes.protobuf")
        assert "stream=watch" in content_type
        assert status.failures_total == 0
