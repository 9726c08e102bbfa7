"""An API server that lies, talks garbage, stalls or forgets: what was served stays served, and the truth arrives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.fake.certificates import make_certificates, server_tls
from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import LabNode, NodeProcess, needs_root

pytestmark = needs_root

FRONTENDS = (("10.96.0.10", 80), ("fd00:10:96::10", 80))


@pytest.fixture(params=["http1", "http2"])
def api(request: pytest.FixtureRequest, node: LabNode, tmp_path: Path) -> Iterator[ApiThread]:
    tls = None
    if request.param == "http2":
        make_certificates(tmp_path)
        tls = server_tls(tmp_path)
    with ApiThread(node, tmp_path, tls) as made:
        yield made


@pytest.fixture
def serving(node: LabNode, process: NodeProcess, api: ApiThread) -> Iterator[NodeProcess]:
    api.load(web_service(), *web_slices(), node_object())
    process.configure(clientConnection={"kubeconfig": str(api.kubeconfig), "qps": 500, "burst": 500})
    with node.backend():
        process.start(from_api=True)
        process.wait_synced()
        node.wait_served("10.96.0.10")
        yield process
        assert process.stop() == 0


def _garbage(server: FakeApiServer) -> None:
    server.send_raw("Service", b'{"type":"EXPLODED","object":{"metadata":{"name":"x","namespace":"y"}}}\n')
    server.send_raw("Service", b"\x00\xff\xfe not json at all\n")
    server.send_raw("EndpointSlice", b'{"type":"MODIFIED","object":{"metadata":{"name":7}}}\n')


def _malformed_frames(server: FakeApiServer) -> None:
    server.send_raw("Service", b"\x00\x00\x00\x0a\x0a\x08EXPLODED")
    server.send_raw("EndpointSlice", b"\x00\x00\x00\x03\x0a\xff\xff")


def _cut_in_the_middle(server: FakeApiServer) -> None:
    server.break_watches(partial=b"\x00\x00\x01\x00\x0a\x05ADDED\x12")


def _errors(server: FakeApiServer) -> None:
    server.fail_next(500, path="services")
    server.fail_next(429, path="endpointslices", retry_after=1)
    server.break_watches()


def _empty_body(server: FakeApiServer) -> None:
    server.compact()
    server.fail_next(200, path="services", body=b"", watch=False)
    server.fail_next(200, path="endpointslices", body=b"<html>502 Bad Gateway</html>")
    server.break_watches()


def _list_without_version(server: FakeApiServer) -> None:
    """An answer that would delete everything if it were believed: a list of nothing, from no moment in time."""
    server.compact()
    lie = json.dumps({"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": []}).encode()
    server.fail_next(200, path="services", body=lie, watch=False)
    server.watch_list = False
    server.break_watches()


def _forgets(server: FakeApiServer) -> None:
    server.compact()
    for kind in ("Service", "EndpointSlice", "Node"):
        server.send_error(kind, 410, "Expired", "too old resource version")


def _huge_line_in_small_pieces(server: FakeApiServer) -> None:
    server.chunk_size = 997
    item = web_service("huge", 99)
    item["metadata"]["annotations"] = {"note": "x" * 3_000_000}
    server.add(item)


def _stalls(_server: FakeApiServer) -> None:
    """The server's only thread sleeps: connections stay open and nothing comes."""
    time.sleep(2.0)


FAULTS: tuple[Callable[[FakeApiServer], None], ...] = (
    _garbage,
    _malformed_frames,
    _cut_in_the_middle,
    _errors,
    _empty_body,
    _list_without_version,
    _forgets,
    _huge_line_in_small_pieces,
    _stalls,
)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__[1:] for fault in FAULTS])
def test_connections_go_on_and_the_next_change_arrives(
    node: LabNode, serving: NodeProcess, api: ApiThread, fault: Callable[[FakeApiServer], None]
) -> None:
    with node.traffic(*FRONTENDS) as traffic:
        api.call(fault)
        traffic.more(30)
        api.load(web_service("after", 20), *web_slices("after"))
        node.wait_served("10.96.0.20", seconds=30)
        node.wait_served("fd00:10:96::20", seconds=30)
    assert traffic.failures == []
    assert serving.alive


def test_what_was_deleted_while_the_server_was_away_goes_too(
    node: LabNode, serving: NodeProcess, api: ApiThread
) -> None:
    api.load(web_service("short", 90), *web_slices("short"))
    node.wait_served("10.96.0.90")
    with node.traffic(*FRONTENDS) as traffic:
        api.stop()
        api.call(lambda server: server.delete("Service", "default/short"))
        api.call(lambda server: server.compact())
        traffic.more(30)
        node.assert_served("10.96.0.90")
        api.start()
        node.wait_unreachable("10.96.0.90", seconds=30)
    assert traffic.failures == []
