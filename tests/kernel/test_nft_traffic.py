"""Real connections through the table, all inside one namespace: balancing, affinity, refusal, counters."""

from __future__ import annotations

import errno
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.factory import context, endpoint, packed, plan, service_port
from tests.kernel.nft_kernel import everything, needs_nft, new_namespace, part

from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family, address_text, cidr_from_text
from pointsman.model.node_context import NodeContext, NodePortAddresses
from pointsman.model.plan import ServicePlan

pytestmark = needs_nft

SERVERS = {
    Family.IPV4: ("10.50.0.1", "10.50.0.2", "10.50.0.3"),
    Family.IPV6: ("fd50::1", "fd50::2", "fd50::3"),
}
VIP = {Family.IPV4: "10.96.0.1", Family.IPV6: "fd96::1"}
NODE_IP = {Family.IPV4: "10.60.0.1", Family.IPV6: "fd60::1"}
RANGE = {Family.IPV4: "10.96.0.0/16", Family.IPV6: "fd96::/64"}


class Servers:
    """Accepts on every server address and answers with it."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets = []
        for address in addresses:
            listener = socket.create_server((address, 8080), family=_domain(address), backlog=256)
            self._selector.register(listener, selectors.EVENT_READ, address)
            self._sockets.append(listener)
        self._stop, wake = socket.socketpair()
        self._selector.register(wake, selectors.EVENT_READ, None)
        self._sockets.append(wake)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                connection, _peer = key.fileobj.accept()  # type: ignore[union-attr]
                with connection:
                    connection.sendall(key.data.encode())

    def close(self) -> None:
        self._stop.close()
        self._thread.join()
        self._selector.close()
        for item in self._sockets:
            item.close()


def _domain(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def ask(address: str, port: int) -> str:
    """Which server answers."""
    with socket.create_connection((address, port), timeout=5) as connection:
        return connection.recv(100).decode()


@pytest.fixture(params=list(Family), ids=lambda family: family.value)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def namespace(family: Family) -> Iterator[Namespace]:
    space = new_namespace()
    bits = "32" if family is Family.IPV4 else "128"
    for address in (*SERVERS[family], NODE_IP[family]):
        at_once = [] if family is Family.IPV4 else ["nodad"]
        space.run(["ip", "address", "add", f"{address}/{bits}", "dev", "lo", *at_once])
    space.run(["ip", "link", "add", "out", "type", "veth", "peer", "name", "wire"])
    space.run(["ip", "link", "set", "wire", "up"])
    space.run(["ip", "link", "set", "out", "up"])
    space.run(["ip", "route", "add", RANGE[family], "dev", "out", "src", NODE_IP[family]])
    with space.entered():
        for address in (*SERVERS[family], NODE_IP[family]):
            space.wait_for_address(address)
        servers = Servers(SERVERS[family])
        yield space
        servers.close()
    space.close()


@pytest.fixture
def backend(namespace: Namespace, family: Family) -> Iterator[NftablesBackend]:
    made = NftablesBackend(family, service_metrics=True)
    yield made
    made.close()


def node(family: Family) -> NodeContext:
    return context(
        family,
        node_port_addresses=NodePortAddresses(match_all=False, addresses=(packed(NODE_IP[family]),)),
        service_cidrs=(cidr_from_text(RANGE[family]),),
    )


def web(family: Family, *servers: str, **fields: Any) -> ServicePlan:
    port = service_port(cluster_ip=VIP[family], node_port=30080, **fields)
    return plan(port, *(endpoint(text) for text in servers), node_context=node(family))


def test_connections_are_spread_and_counted(backend: NftablesBackend, family: Family) -> None:
    made = web(family, *SERVERS[family])
    backend.sync(everything(node(family), {made.name: made}))
    answers = Counter(ask(VIP[family], 80) for _ in range(60))
    answers.update(ask(NODE_IP[family], 30080) for _ in range(30))
    assert set(answers) == set(SERVERS[family])
    counts = backend.count_traffic()
    assert counts.connections == {made.name: 90}
    assert sum(counts.endpoint_connections.values()) == 90
    ports = {str(e): address_text(e.address) for e in made.endpoints.cluster}
    assert Counter({ports[name]: n for (_, name), n in counts.endpoint_connections.items()}) == answers


def test_counts_survive_reloads_and_moved_slots(backend: NftablesBackend, family: Family) -> None:
    full = web(family, *SERVERS[family])
    backend.sync(everything(node(family), {full.name: full}))
    for _ in range(10):
        ask(VIP[family], 80)
    assert backend.count_traffic().connections[full.name] == 10
    fewer = web(family, *SERVERS[family][1:])
    backend.sync(part(node(family), {fewer.name: fewer}, fewer.name))
    for _ in range(3):
        ask(VIP[family], 80)
    backend.sync(everything(node(family), {fewer.name: fewer}))
    for _ in range(20):
        ask(VIP[family], 80)
    assert backend.count_traffic().connections[full.name] == 33
    left = backend.count_traffic().endpoint_connections
    assert {name for _, name in left} == {str(e) for e in fewer.endpoints.cluster}
    assert 23 <= sum(left.values()) <= 33
    backend.sync(part(node(family), {}, full.name))
    assert backend.count_traffic().connections == {}


def test_a_client_keeps_its_endpoint_at_every_address_and_through_changes(
    backend: NftablesBackend, family: Family
) -> None:
    sticky = web(family, *SERVERS[family], affinity_seconds=600)
    backend.sync(everything(node(family), {sticky.name: sticky}))
    first = ask(VIP[family], 80)
    assert {ask(VIP[family], 80) for _ in range(15)} == {first}
    assert {ask(NODE_IP[family], 30080) for _ in range(5)} == {first}
    counts = backend.count_traffic()
    assert counts.connections == {sticky.name: 21}
    assert {
        name.rpartition(":")[0].strip("[]"): n for (_, name), n in counts.endpoint_connections.items() if n
    } == {first: 21}
    other = next(server for server in SERVERS[family] if server != first)
    fewer = web(family, *(s for s in SERVERS[family] if s != other), affinity_seconds=600)
    backend.sync(part(node(family), {fewer.name: fewer}, fewer.name))
    assert {ask(VIP[family], 80) for _ in range(5)} == {first}
    moved = web(family, other, affinity_seconds=600)
    backend.sync(part(node(family), {moved.name: moved}, moved.name))
    assert ask(VIP[family], 80) == other


def refusal(address: str, port: int) -> int:
    with pytest.raises(OSError) as caught:
        ask(address, port)
    return caught.value.errno or 0


def test_nothing_there_is_refused_at_once(backend: NftablesBackend, family: Family) -> None:
    empty = web(family)
    backend.sync(everything(node(family), {empty.name: empty}))
    assert refusal(VIP[family], 80) == errno.ECONNREFUSED
    assert refusal(VIP[family], 81) == errno.ECONNREFUSED
    assert refusal(NODE_IP[family], 30080) == errno.ECONNREFUSED


def test_an_unallocated_address_is_not_answered(backend: NftablesBackend, family: Family) -> None:
    backend.sync(everything(node(family), {}))
    with socket.socket(_domain(VIP[family]), socket.SOCK_DGRAM) as sender, pytest.raises(PermissionError):
        sender.sendto(b"hello", (VIP[family], 53))
