"""When the assembled proxy makes its first sync, and that trouble around it does not end it."""

from __future__ import annotations

import asyncio
import errno
import socket

import msgspec
import pytest
from tests import factory
from tests.process.assembled import Assembly, assembled, until

from pointsman.errors import KernelError, NotSupported
from pointsman.model.addresses import Family
from pointsman.model.node_context import Situation
from pointsman.model.objects import EndpointSlice, Meta, Node, NodeSpec, Service, ServiceCIDR, ServiceCIDRSpec
from pointsman.sync.loop import SyncListener

ADDRESSED = factory.node(addresses=[{"type": "InternalIP", "address": "172.30.0.10"}])


async def test_the_first_sync_waits_for_every_kind() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), factory.endpoint_slice("10.244.1.1"), ADDRESSED)
        world.source.listed(Service, EndpointSlice, Node)
        await asyncio.sleep(0.1)
        assert world.syncs == 0
        world.source.listed(ServiceCIDR)
        await world.settled()
        assert len(world.backends[Family.IPV4].programmed) == 1


async def test_service_ranges_that_cannot_be_listed_are_done_without() -> None:
    async with assembled(service_range_wait=0.2) as world:
        world.source.put(factory.service(), factory.endpoint_slice("10.244.1.1"), ADDRESSED)
        world.source.listed(Service, EndpointSlice, Node)
        await asyncio.sleep(0.1)
        assert world.syncs == 0
        await until(lambda: world.syncs > 0)
        assert len(world.backends[Family.IPV4].programmed) == 1
        world.source.put(ServiceCIDR(Meta(name="kubernetes"), ServiceCIDRSpec(cidrs=["10.96.0.0/16"])))
        await until(lambda: bool(world.proxy.node.context(Family.IPV4).service_cidrs))
        await world.settled()


async def test_a_missing_node_is_waited_for_and_then_done_without() -> None:
    async with assembled(node_wait=0.3) as world:
        world.source.put(factory.service())
        world.source.listed()
        await asyncio.sleep(0.1)
        assert world.syncs == 0
        assert not world.proxy.gate.is_open
        await asyncio.sleep(0.3)
        await world.settled()
        assert world.syncs >= 1


async def test_a_node_that_nobody_could_list_is_not_called_missing(caplog: pytest.LogCaptureFixture) -> None:
    async with assembled(node_wait=0.1) as world:
        world.source.put(factory.service())
        await asyncio.sleep(0.3)
        assert world.syncs == 0
    assert "The Node could not be listed yet" in caplog.text
    assert "No such Node" not in caplog.text


async def test_a_node_that_has_no_address_yet_is_waited_for_too() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), factory.node(addresses=[]))
        world.source.listed()
        await asyncio.sleep(0.1)
        assert world.syncs == 0
        world.source.put(ADDRESSED)
        await world.settled()
        assert world.syncs >= 1


async def test_a_pod_range_that_detection_needs_is_waited_for() -> None:
    async with assembled(node_wait=0.1, detect_local_mode="NodeCIDR") as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await asyncio.sleep(0.3)
        assert world.syncs == 0
        world.source.put(msgspec.structs.replace(ADDRESSED, spec=NodeSpec(pod_cidrs=["10.244.1.0/24"])))
        await world.settled()
        assert world.syncs >= 1


async def test_a_node_that_never_gets_its_pod_range_ends_the_proxy_with_the_reason() -> None:
    world = Assembly(node_wait=0.1, pod_range_wait=0.1, detect_local_mode="NodeCIDR")
    world.source.put(ADDRESSED)
    world.source.listed()
    with pytest.raises(NotSupported, match=r"spec\.podCIDRs"):
        await asyncio.wait_for(world.proxy.run(), 20)
    assert world.syncs == 0
    await world.proxy.close()


async def test_a_node_whose_first_family_the_machine_lacks_is_not_served() -> None:
    world = Assembly(families=[Family.IPV4])
    world.source.put(factory.node(addresses=[{"type": "InternalIP", "address": "2001:db8::1"}]))
    world.source.listed()
    with pytest.raises(NotSupported, match="first address is IPv6"):
        await asyncio.wait_for(world.proxy.run(), 20)
    assert world.syncs == 0
    await world.proxy.close()


async def test_a_health_check_port_that_is_taken_is_told_as_kube_proxy_tells_it() -> None:
    with socket.socket() as squatter:
        squatter.bind(("0.0.0.0", 0))
        squatter.listen(1)
        taken = squatter.getsockname()[1]
        async with assembled(node_port_addresses=("0.0.0.0/0",)) as world:
            balanced = factory.service(
                type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=taken
            )
            world.source.put(balanced, ADDRESSED)
            world.source.listed()
            await until(lambda: bool(world.recorder.told))
            assert set(world.recorder.told) == {("default/web", "FailedToStartServiceHealthcheck", "Listen")}


async def test_service_changes_are_counted_once_per_family_as_kube_proxy_does() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await world.settled()
        assert b"kubeproxy_sync_proxy_rules_service_changes_total 2.0" in world.metrics.exposition()


async def test_addresses_that_cannot_be_read_for_a_moment_do_not_end_the_proxy() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await world.settled()
        before = world.proxy.node.context(Family.IPV4)
        world.machine.failures = [KernelError("no buffer space", errno=errno.ENOBUFS)]
        world.machine.changes.put_nowait(None)
        await asyncio.sleep(0.05)
        assert world.proxy.node.context(Family.IPV4) == before
        world.machine.addresses[Family.IPV4] = (b"\x7f\0\0\1", b"\x0a\0\0\5")
        world.machine.changes.put_nowait(None)
        await until(lambda: b"\x0a\0\0\5" in world.proxy.node.addresses[Family.IPV4])


class Told(SyncListener):
    """What was said about the node's addresses."""

    def __init__(self) -> None:
        self.situations: list[Situation] = []

    def readdressed(self, situation: Situation) -> None:
        self.situations.append(situation)


async def test_a_new_address_of_the_node_is_told_although_no_rule_names_it() -> None:
    """Flows to it may have begun while another machine had it."""
    told = Told()
    async with assembled(listeners=(told,)) as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await world.settled()
        syncs = world.syncs
        world.machine.changes.put_nowait(None)
        world.machine.addresses[Family.IPV4] = (b"\x7f\0\0\1", b"\x0a\0\0\5")
        world.machine.changes.put_nowait(None)
        await until(lambda: bool(told.situations))
        assert [one.own_addresses for one in told.situations] == [(b"\x7f\0\0\1", b"\x0a\0\0\5")]
        assert world.syncs == syncs


async def test_a_bug_met_while_looking_for_drift_does_not_end_the_proxy() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await world.settled()
        syncs = world.syncs
        world.backends[Family.IPV4].drifts = [ZeroDivisionError("bug")]
        await until(lambda: world.syncs > syncs)
