"""Node addresses read and watched on the host's kernel, in a namespace of their own."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest
from tests.factory import packed

from pointsman.kernel.rtnl import AddressMonitor, RouteSocket, list_local_addresses
from pointsman.lab.netns import LabUnavailable, Namespace
from pointsman.model.addresses import Family

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


@pytest.fixture
def node() -> Iterator[Namespace]:
    try:
        namespace = Namespace()
    except LabUnavailable as error:
        pytest.skip(str(error))
    namespace.run(
        ("ip", "-batch", "-"),
        "link set lo up\nlink add va type veth peer name vb\nlink set va up\nlink set vb up\n"
        "addr add 192.0.2.1/24 dev va\naddr add 192.0.2.1/24 dev vb\naddr add 192.0.2.2/32 dev vb\n"
        "addr add 2001:db8::1/64 dev va nodad\naddr add 10.0.0.1 peer 10.0.0.2 dev vb\n",
    )
    with namespace.entered():
        yield namespace
    namespace.close()


def test_every_address_is_listed_once_by_family(node: Namespace) -> None:
    texts = ("10.0.0.1", "127.0.0.1", "192.0.2.1", "192.0.2.2")
    assert list_local_addresses(Family.IPV4) == tuple(packed(text) for text in texts)
    assert packed("2001:db8::1") in list_local_addresses(Family.IPV6)
    assert packed("::1") in list_local_addresses(Family.IPV6)


def test_an_address_shared_with_an_excluded_interface_still_counts(node: Namespace) -> None:
    assert list_local_addresses(Family.IPV4, exclude=("vb", "lo")) == (packed("192.0.2.1"),)
    assert list_local_addresses(Family.IPV4, exclude=("nothing-of-that-name",)) == list_local_addresses(
        Family.IPV4
    )


def test_changes_wake_the_monitor(node: Namespace) -> None:
    monitor = AddressMonitor()
    try:
        assert not monitor.drain()
        node.run(("ip", "addr", "add", "192.0.2.9/32", "dev", "va"))
        assert select.select([monitor], [], [], 5)[0]
        assert monitor.drain()
        assert not monitor.drain()
        node.run(("ip", "addr", "del", "192.0.2.9/32", "dev", "va"))
        assert monitor.drain()
        node.run(("ip", "link", "set", "va", "mtu", "1400"))
        assert not monitor.drain()
    finally:
        monitor.close()


def test_new_ipv6_addresses_are_local_when_they_were_waited_for(node: Namespace) -> None:
    """The kernel makes their routes later, on a thread of its own: of a thousand, many are missing at first."""
    added = [packed("fd00::")[:14] + number.to_bytes(2) for number in range(1, 1001)]
    route = RouteSocket()
    try:
        replies = route.add_addresses(route.list_indexes()["lo"], added)
        late = route.wait_until_local(added, 10)
        assert not any(reply.errno for reply in replies)
        assert late == []
        assert all(way.local for way in route.find_routes(added).values())
    finally:
        route.close()


def test_waiting_for_an_address_that_does_not_become_local_ends(node: Namespace) -> None:
    route = RouteSocket()
    try:
        elsewhere = packed("2001:db8::2")
        assert route.wait_until_local([packed("2001:db8::1"), elsewhere, packed("::1")], 0.01) == [elsewhere]
    finally:
        route.close()


def test_links_are_known_by_name_and_can_be_removed(node: Namespace) -> None:
    route = RouteSocket()
    try:
        assert {"lo", "va", "vb"} <= route.list_indexes().keys()
        assert route.delete_link("va")
        assert not route.delete_link("va")
        assert "vb" not in route.list_indexes()
    finally:
        route.close()
