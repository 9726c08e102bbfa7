"""Node ports at the loopback address: carried in user space, following the plans."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.kernel.nft_kernel import everything, needs_nft, new_namespace, part

from pointsman.backends.contract import SyncReport, SyncRequest
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext, NodePortAddresses
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.node.loopback_node_ports import LoopbackNodePorts, compute_max_connections
from pointsman.obs import MetricGroup
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import PlanChange, SyncOutcome

pytestmark = needs_nft

LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
SERVER = {Family.IPV4: "10.50.0.1", Family.IPV6: "fd50::1"}
VIP = {Family.IPV4: "10.96.0.1", Family.IPV6: "fd96::1"}
PORT = 30080
T = TypeVar("T")


@pytest.fixture(params=list(Family), ids=lambda family: family.value)
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    chosen: Family = request.param
    space = new_namespace()
    bits = "32" if chosen is Family.IPV4 else "128"
    at_once = [] if chosen is Family.IPV4 else ["nodad"]
    space.run(["ip", "address", "add", f"{SERVER[chosen]}/{bits}", "dev", "lo", *at_once])
    with space.entered():
        domain = socket.AF_INET if chosen is Family.IPV4 else socket.AF_INET6
        space.wait_for_address(SERVER[chosen])
        server = socket.create_server((SERVER[chosen], 8080), family=domain)
        thread = threading.Thread(target=_echo, args=(server,))
        thread.start()
        yield chosen
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.close()
    space.close()


def _echo(server: socket.socket) -> None:
    """Sends everything back once the client has finished, so that half-closed connections are needed."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(_everything(connection))


def _everything(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


class Ports:
    """Listeners in an event loop on a thread of its own, which hear of syncs."""

    def __init__(self, max_connections: Callable[[], int] = compute_max_connections) -> None:
        self.metrics = Metrics("nftables", frozenset((MetricGroup.NFTABLES,)))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._plans: dict[ServicePortName, ServicePlan] = {}
        self._ports: LoopbackNodePorts = self._run(self._make(max_connections))

    def sync(self, request: SyncRequest) -> None:
        old, self._plans = self._plans, dict(request.plans)
        names = old.keys() | self._plans.keys() if request.full else request.changed.keys()
        changes = {name: PlanChange(old.get(name), self._plans.get(name)) for name in names}
        report = SyncReport(full=request.full)
        self._run(self._follow(SyncOutcome(report, changes, {}, request.context, seconds=0.0, first=False)))

    def value(self, metric: str, family: Family) -> float:
        name = f'kubeproxy_nftables_localhost_nodeport_{metric}{{ip_family="{family.value}"}}'
        lines = self.metrics.render().decode().splitlines()
        (value,) = (line.split()[-1] for line in lines if line.startswith(name))
        return float(value)

    def close(self) -> None:
        if self._thread.is_alive():
            self._run(self._ports.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _make(self, max_connections: Callable[[], int]) -> LoopbackNodePorts:
        return LoopbackNodePorts(self.metrics, max_connections)

    async def _follow(self, outcome: SyncOutcome) -> None:
        self._ports.on_synced(outcome)
        await self._ports.settled()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)


@pytest.fixture
def ports(family: Family) -> Iterator[Ports]:
    """In the namespace of `family`."""
    made = Ports()
    yield made
    made.close()


def node(family: Family, *, asked: bool = True) -> NodeContext:
    return context(family, node_port_addresses=NodePortAddresses(match_all=False, loopback_requested=asked))


def web(family: Family, protocol: Protocol = Protocol.TCP, servers: int = 1) -> ServicePlan:
    port = service_port(cluster_ip=VIP[family], node_port=PORT, protocol=protocol)
    return plan(port, *([endpoint(SERVER[family])] * servers), node_context=node(family))


def exchanged(family: Family, data: bytes) -> bytes:
    with socket.create_connection((LOOPBACK[family], PORT), timeout=10) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return _everything(client)


def refused(family: Family) -> bool:
    with socket.socket(socket.AF_INET if family is Family.IPV4 else socket.AF_INET6) as client:
        return client.connect_ex((LOOPBACK[family], PORT)) == errno.ECONNREFUSED


def test_connections_are_carried_both_ways(ports: Ports, family: Family) -> None:
    made = web(family)
    ports.sync(everything(node(family), {made.name: made}))
    data = bytes(range(256)) * 2000
    assert exchanged(family, data) == data


def test_ports_follow_the_plans(ports: Ports, family: Family) -> None:
    made, empty = web(family), web(family, servers=0)
    ports.sync(everything(node(family), {made.name: empty}))
    assert refused(family)
    ports.sync(part(node(family), {made.name: made}, made.name))
    assert exchanged(family, b"hello") == b"hello"
    ports.sync(part(node(family), {}, made.name))
    assert refused(family)


def test_policy_local_leaves_out_endpoints_elsewhere(ports: Ports, family: Family) -> None:
    port = service_port(cluster_ip=VIP[family], node_port=PORT, external_local=True)
    elsewhere = plan(port, endpoint(SERVER[family]), node_context=node(family))
    here = plan(port, endpoint(SERVER[family], local=True), node_context=node(family))
    ports.sync(everything(node(family), {here.name: elsewhere}))
    assert refused(family)
    ports.sync(part(node(family), {here.name: here}, here.name))
    assert exchanged(family, b"here") == b"here"


def test_a_port_can_pass_from_one_service_to_another(ports: Ports, family: Family) -> None:
    first = web(family)
    port = service_port(name="second", cluster_ip=VIP[family], port=81, node_port=PORT)
    second = plan(port, endpoint(SERVER[family]), node_context=node(family))
    ports.sync(everything(node(family), {first.name: first}))
    ports.sync(part(node(family), {second.name: second}, second.name, first.name))
    assert exchanged(family, b"passed on") == b"passed on"


def test_only_tcp_and_only_where_asked_for(ports: Ports, family: Family) -> None:
    made = web(family)
    ports.sync(everything(node(family, asked=False), {made.name: made}))
    assert refused(family)
    datagrams = web(family, Protocol.UDP)
    ports.sync(everything(node(family), {datagrams.name: datagrams}))
    assert refused(family)


def test_a_taken_port_is_logged_counted_and_opened_by_the_next_full_sync(
    ports: Ports, family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    made = web(family)
    domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with socket.create_server((LOOPBACK[family], PORT), family=domain):
        ports.sync(everything(node(family), {made.name: made}))
    (record,) = caplog.records
    assert record.message == "Cannot listen on node port"
    assert record.__dict__["fields"] == {
        "address": LOOPBACK[family],
        "port": PORT,
        "err": "Address already in use",
    }
    assert ports.value("listeners", family) == 0
    assert ports.value("listener_creation_failures_total", family) == 1
    ports.sync(everything(node(family), {made.name: made}))
    assert exchanged(family, b"later") == b"later"
    assert ports.value("listeners", family) == 1
    assert ports.value("listener_creation_failures_total", family) == 1
    ports.sync(part(node(family), {}, made.name))
    assert ports.value("listeners", family) == 0


def test_a_client_that_resets_its_connection_frees_the_endpoint(ports: Ports, family: Family) -> None:
    made = web(family)
    ports.sync(everything(node(family), {made.name: made}))
    client = socket.create_connection((LOOPBACK[family], PORT), timeout=10)
    client.sendall(b"never finished")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert exchanged(family, b"next") == b"next"


def test_a_reset_is_passed_on_as_one(ports: Ports, family: Family, servers: dict[int, socket.socket]) -> None:
    made = _at(family, 8081)
    ports.sync(everything(node(family), {made.name: made}))
    client = socket.create_connection((LOOPBACK[family], PORT), timeout=10)
    carried, _ = servers[8081].accept()
    with carried:
        carried.settimeout(10)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        with pytest.raises(ConnectionResetError):
            carried.recv(1)


@pytest.fixture
def servers(family: Family) -> Iterator[dict[int, socket.socket]]:
    """Endpoints by port that answer nothing by themselves."""
    domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with contextlib.ExitStack() as stack:
        yield {
            port: stack.enter_context(socket.create_server((SERVER[family], port), family=domain))
            for port in (8081, 8082, 8083)
        }


def _led_to(servers: dict[int, socket.socket], family: Family) -> int:
    """The port of the endpoint that a new connection is carried to."""
    with socket.create_connection((LOOPBACK[family], PORT), timeout=10):
        ready, _, _ = select.select(servers.values(), [], [], 10)
        (chosen,) = ready
        chosen.accept()[0].close()
        number: int = chosen.getsockname()[1]
        return number


def _at(family: Family, *ports: int, affinity_seconds: int = 0) -> ServicePlan:
    port = service_port(cluster_ip=VIP[family], node_port=PORT, affinity_seconds=affinity_seconds)
    return plan(port, *(endpoint(SERVER[family], number) for number in ports), node_context=node(family))


def test_session_affinity_keeps_to_one_endpoint_for_as_long_as_it_is_there(
    ports: Ports, family: Family, servers: dict[int, socket.socket]
) -> None:
    made = _at(family, *servers, affinity_seconds=10800)
    ports.sync(everything(node(family), {made.name: made}))
    first = {_led_to(servers, family) for _ in range(30)}
    assert len(first) == 1
    fewer = _at(family, *(servers.keys() - first), affinity_seconds=10800)
    ports.sync(part(node(family), {made.name: fewer}, made.name))
    second = {_led_to(servers, family) for _ in range(30)}
    assert len(second) == 1
    assert second.isdisjoint(first)
    ports.sync(part(node(family), {made.name: made}, made.name))
    assert {_led_to(servers, family) for _ in range(30)} == second
    without = _at(family, *servers)
    ports.sync(part(node(family), {made.name: without}, made.name))
    assert {_led_to(servers, family) for _ in range(60)} == set(servers)


def test_connections_end_with_their_service_and_not_with_their_endpoint(
    ports: Ports, family: Family, servers: dict[int, socket.socket]
) -> None:
    made = _at(family, 8081)
    ports.sync(everything(node(family), {made.name: made}))
    with socket.create_connection((LOOPBACK[family], PORT), timeout=10) as client:
        carried, _ = servers[8081].accept()
        carried.settimeout(10)
        ports.sync(part(node(family), {made.name: _at(family, 8082)}, made.name))
        carried.sendall(b"still here")
        assert client.recv(100) == b"still here"
        ports.sync(part(node(family), {}, made.name))
        assert client.recv(1) == carried.recv(1) == b""
        carried.close()


def test_a_connection_ends_when_the_last_endpoint_goes(
    ports: Ports, family: Family, servers: dict[int, socket.socket]
) -> None:
    made = _at(family, 8081)
    ports.sync(everything(node(family), {made.name: made}))
    with socket.create_connection((LOOPBACK[family], PORT), timeout=10) as client:
        carried, _ = servers[8081].accept()
        carried.settimeout(10)
        ports.sync(part(node(family), {made.name: _at(family)}, made.name))
        assert client.recv(1) == carried.recv(1) == b""
        carried.close()


def test_connections_are_bounded_and_who_comes_too_late_is_refused(
    family: Family, servers: dict[int, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    made = _at(family, 8081)
    ports = Ports(lambda: 2)
    with contextlib.ExitStack() as stack:
        stack.callback(ports.close)
        ports.sync(everything(node(family), {made.name: made}))
        held = [_carried(stack, family, servers[8081]) for _ in range(2)]
        assert None not in held
        assert [_carried(stack, family, servers[8081]) for _ in range(3)] == [None] * 3
        assert [record.message for record in caplog.records] == [
            "Too many connections to node ports on loopback, rejecting new ones"
        ], "once, not for each"
        assert held[0] is not None
        for side in held[0]:
            side.close()
        while _carried(stack, family, servers[8081]) is None:
            pass


def _carried(
    stack: contextlib.ExitStack, family: Family, server: socket.socket
) -> tuple[socket.socket, socket.socket] | None:
    """Both ends of a new connection; None when it is reset, which may be before the client knows that it was accepted."""
    try:
        client = stack.enter_context(socket.create_connection((LOOPBACK[family], PORT), timeout=10))
    except ConnectionResetError:
        return None
    ready, _, _ = select.select([server, client], [], [], 10)
    if server in ready:
        return client, stack.enter_context(server.accept()[0])
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    return None


def test_open_connections_end_quietly_with_the_proxy(
    ports: Ports, family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    port = service_port(cluster_ip=VIP[family], node_port=PORT)
    made = plan(port, endpoint(SERVER[family], 8081), node_context=node(family))
    domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with socket.create_server((SERVER[family], 8081), family=domain) as server:
        ports.sync(everything(node(family), {made.name: made}))
        with socket.create_connection((LOOPBACK[family], PORT), timeout=10) as client:
            carried, _ = server.accept()
            ports.close()
            assert client.recv(1) == carried.recv(1) == b""
            carried.close()
    assert caplog.records == []


def test_a_change_of_addresses_opens_and_closes_ports(ports: Ports, family: Family) -> None:
    made = web(family)
    ports.sync(everything(node(family, asked=False), {made.name: made}))
    ports.sync(part(node(family), {made.name: made}))
    assert exchanged(family, b"now") == b"now"
    ports.sync(part(node(family, asked=False), {made.name: made}))
    assert refused(family)
