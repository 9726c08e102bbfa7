"""Node ports at the loopback address: carried in user space, following the plans."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.kernel.nft_kernel import everything, needs_nft, new_namespace, part

from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.backends.nftables.loopback import LoopbackNodePorts
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext, NodePortAddresses
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol

pytestmark = needs_nft

LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
SERVER = {Family.IPV4: "10.50.0.1", Family.IPV6: "fd50::1"}
VIP = {Family.IPV4: "10.96.0.1", Family.IPV6: "fd96::1"}
PORT = 30080


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


@pytest.fixture
def backend(family: Family) -> Iterator[NftablesBackend]:
    made = NftablesBackend(family, localhost_node_ports=True)
    yield made
    made.close()


def node(family: Family, *, asked: bool = True) -> NodeContext:
    return context(family, node_port_addresses=NodePortAddresses(match_all=False, loopback_asked=asked))


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


def test_connections_are_carried_both_ways(backend: NftablesBackend, family: Family) -> None:
    made = web(family)
    assert backend.sync(everything(node(family), {made.name: made})).notes == ()
    data = bytes(range(256)) * 2000
    assert exchanged(family, data) == data


def test_ports_follow_the_plans(backend: NftablesBackend, family: Family) -> None:
    made, empty = web(family), web(family, servers=0)
    backend.sync(everything(node(family), {made.name: empty}))
    assert refused(family)
    backend.sync(part(node(family), {made.name: made}, made.name))
    assert exchanged(family, b"hello") == b"hello"
    backend.sync(part(node(family), {}, made.name))
    assert refused(family)


def test_policy_local_leaves_out_endpoints_elsewhere(backend: NftablesBackend, family: Family) -> None:
    port = service_port(cluster_ip=VIP[family], node_port=PORT, external_local=True)
    elsewhere = plan(port, endpoint(SERVER[family]), node_context=node(family))
    here = plan(port, endpoint(SERVER[family], local=True), node_context=node(family))
    backend.sync(everything(node(family), {here.name: elsewhere}))
    assert refused(family)
    backend.sync(part(node(family), {here.name: here}, here.name))
    assert exchanged(family, b"here") == b"here"


def test_a_port_can_pass_from_one_service_to_another(backend: NftablesBackend, family: Family) -> None:
    first = web(family)
    port = service_port(name="second", cluster_ip=VIP[family], port=81, node_port=PORT)
    second = plan(port, endpoint(SERVER[family]), node_context=node(family))
    backend.sync(everything(node(family), {first.name: first}))
    backend.sync(part(node(family), {second.name: second}, second.name, first.name))
    assert exchanged(family, b"passed on") == b"passed on"


def test_only_tcp_and_only_where_asked_for(backend: NftablesBackend, family: Family) -> None:
    made = web(family)
    backend.sync(everything(node(family, asked=False), {made.name: made}))
    assert refused(family)
    datagrams = web(family, Protocol.UDP)
    backend.sync(everything(node(family), {datagrams.name: datagrams}))
    assert refused(family)


def test_a_taken_port_is_reported_and_the_rest_goes_on(backend: NftablesBackend, family: Family) -> None:
    made = web(family)
    domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with socket.create_server((LOOPBACK[family], PORT), family=domain):
        (note,) = backend.sync(everything(node(family), {made.name: made})).notes
    assert f"node port {PORT} is not served at {LOOPBACK[family]}: Address already in use" in note
    backend.sync(everything(node(family), {made.name: made}))
    assert exchanged(family, b"later") == b"later"


def test_a_client_that_resets_its_connection_frees_the_endpoint(
    backend: NftablesBackend, family: Family
) -> None:
    made = web(family)
    backend.sync(everything(node(family), {made.name: made}))
    client = socket.create_connection((LOOPBACK[family], PORT), timeout=10)
    client.sendall(b"never finished")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert exchanged(family, b"next") == b"next"


def test_a_reset_is_passed_on_as_one(
    backend: NftablesBackend, family: Family, servers: dict[int, socket.socket]
) -> None:
    made = _at(family, 8081)
    backend.sync(everything(node(family), {made.name: made}))
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
    backend: NftablesBackend, family: Family, servers: dict[int, socket.socket]
) -> None:
    made = _at(family, *servers, affinity_seconds=10800)
    backend.sync(everything(node(family), {made.name: made}))
    first = {_led_to(servers, family) for _ in range(30)}
    assert len(first) == 1
    fewer = _at(family, *(servers.keys() - first), affinity_seconds=10800)
    backend.sync(part(node(family), {made.name: fewer}, made.name))
    second = {_led_to(servers, family) for _ in range(30)}
    assert len(second) == 1
    assert second.isdisjoint(first)
    backend.sync(part(node(family), {made.name: made}, made.name))
    assert {_led_to(servers, family) for _ in range(30)} == second
    without = _at(family, *servers)
    backend.sync(part(node(family), {made.name: without}, made.name))
    assert {_led_to(servers, family) for _ in range(60)} == set(servers)


def test_connections_end_with_their_service_and_not_with_their_endpoint(
    backend: NftablesBackend, family: Family, servers: dict[int, socket.socket]
) -> None:
    made = _at(family, 8081)
    backend.sync(everything(node(family), {made.name: made}))
    with socket.create_connection((LOOPBACK[family], PORT), timeout=10) as client:
        carried, _ = servers[8081].accept()
        carried.settimeout(10)
        backend.sync(part(node(family), {made.name: _at(family, 8082)}, made.name))
        carried.sendall(b"still here")
        assert client.recv(100) == b"still here"
        backend.sync(part(node(family), {}, made.name))
        assert client.recv(1) == carried.recv(1) == b""
        carried.close()


def test_a_connection_ends_when_the_last_endpoint_goes(
    backend: NftablesBackend, family: Family, servers: dict[int, socket.socket]
) -> None:
    made = _at(family, 8081)
    backend.sync(everything(node(family), {made.name: made}))
    with socket.create_connection((LOOPBACK[family], PORT), timeout=10) as client:
        carried, _ = servers[8081].accept()
        carried.settimeout(10)
        backend.sync(part(node(family), {made.name: _at(family)}, made.name))
        assert client.recv(1) == carried.recv(1) == b""
        carried.close()


def test_connections_are_bounded_and_who_comes_too_late_is_refused(
    family: Family, servers: dict[int, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    made = _at(family, 8081)
    ports = LoopbackNodePorts(family, most=lambda: 2)
    with contextlib.ExitStack() as stack:
        stack.callback(ports.close)
        assert ports.replace({made.name: made}) == []
        held = [_carried(stack, family, servers[8081]) for _ in range(2)]
        assert None not in held
        assert [_carried(stack, family, servers[8081]) for _ in range(3)] == [None] * 3
        assert [record.message for record in caplog.records] == [
            "Too many connections to node ports on loopback; refusing more"
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


def test_a_sync_counts_the_listeners_and_those_that_could_not_be_made(
    backend: NftablesBackend, family: Family
) -> None:
    made = web(family)
    domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with socket.create_server((LOOPBACK[family], PORT), family=domain):
        report = backend.sync(everything(node(family), {made.name: made}))
    assert (report.listeners, report.listeners_failed) == (0, 1)
    report = backend.sync(everything(node(family), {made.name: made}))
    assert (report.listeners, report.listeners_failed) == (1, 0)
    assert backend.sync(part(node(family), {}, made.name)).listeners == 0


def test_open_connections_end_quietly_with_the_backend(
    backend: NftablesBackend, family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    port = service_port(cluster_ip=VIP[family], node_port=PORT)
    made = plan(port, endpoint(SERVER[family], 8081), node_context=node(family))
    domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with socket.create_server((SERVER[family], 8081), family=domain) as server:
        backend.sync(everything(node(family), {made.name: made}))
        with socket.create_connection((LOOPBACK[family], PORT), timeout=10) as client:
            carried, _ = server.accept()
            backend.close()
            assert client.recv(1) == carried.recv(1) == b""
            carried.close()
    assert caplog.records == []
