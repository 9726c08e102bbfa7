"""Open means established: what `top`, the status page and least-connections count, with real connections."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
from collections.abc import Iterator

import pytest
from tests.harness.waiting import wait_until

from pointsman.kernel.flow_count import FlowCount
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(
        shutil.which("conntrack") is None, reason="the conntrack tool is the independent reader"
    ),
]

ADDRESSES = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
PORT = 8080
TRACK = "add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c ct state new"


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    space = Namespace()
    space.run(["ip", "link", "set", "lo", "up"])
    space.run(["nft", TRACK])
    with space.entered():
        yield space
    space.close()


def count(family: Family, protocol: int) -> FlowCount[str]:
    address = socket.inet_pton(
        socket.AF_INET if family is Family.IPV4 else socket.AF_INET6, ADDRESSES[family]
    )
    counted = FlowCount({(protocol, address, PORT): "web"}, lambda _owner, _endpoint: True, max_flows=100)
    counted.read(family, 10)
    return counted


def states(space: Namespace, family: Family) -> set[str]:
    lines = space.run(["conntrack", "-L", "-f", family.value.lower(), "-p", "tcp"]).splitlines()
    return {line.split()[3] for line in lines}


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_closed_and_reset_connections_are_not_open(namespace: Namespace, family: Family) -> None:
    with contextlib.ExitStack() as held:
        domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        server = held.enter_context(socket.create_server((ADDRESSES[family], PORT), family=domain))

        def connect() -> tuple[socket.socket, socket.socket]:
            client = socket.create_connection((ADDRESSES[family], PORT), timeout=10)
            return client, server.accept()[0]

        for _ in range(5):
            for end in connect():
                held.enter_context(end)
        for _ in range(3):
            for end in connect():
                end.close()
        for _ in range(2):
            client, accepted = connect()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            accepted.close()
        wait_until(lambda: {"ESTABLISHED", "TIME_WAIT", "CLOSE"} <= states(namespace, family))
        counted = count(family, socket.IPPROTO_TCP)
    assert counted.open.total() == 5
    assert len(counted.flows) == 10, "short connections are new ones, too"


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_udp_flows_are_open_once_answered(namespace: Namespace, family: Family) -> None:
    domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.socket(domain, socket.SOCK_DGRAM))
        server.bind((ADDRESSES[family], PORT))
        for number in range(5):
            client = held.enter_context(socket.socket(domain, socket.SOCK_DGRAM))
            client.connect((ADDRESSES[family], PORT))
            client.send(b"?")
            _, sender = server.recvfrom(16)
            if number < 3:
                server.sendto(b"!", sender)
                client.recv(16)
        counted = count(family, socket.IPPROTO_UDP)
    assert (counted.open.total(), len(counted.flows)) == (3, 5)


def test_sctp_associations_are_open_while_established(namespace: Namespace) -> None:
    for number, state in enumerate(("COOKIE_WAIT", "ESTABLISHED", "ESTABLISHED", "SHUTDOWN_SENT")):
        namespace.run(
            [
                *("conntrack", "-I", "-p", "sctp", "-t", "300", "--state", state),
                *("--orig-vtag", "1", "--reply-vtag", "2"),
                *("-s", "127.0.0.1", "--sport", str(1000 + number), "-d", "127.0.0.1", "--dport", str(PORT)),
            ]
        )
    assert count(Family.IPV4, socket.IPPROTO_SCTP).open.total() == 2
