"""When the assembled proxy makes its first sync, and which errors do not end it."""

from __future__ import annotations

import asyncio
import errno
import socket

import msgspec
import pytest
from tests import factory
from tests.harness.assembled import Assembly, assembled
from tests.harness.waiting import async_wait_until

from pointsman.errors import ConfigError, KernelError
from pointsman.model.addresses import Family
from pointsman.model.objects import (
    Delete,
    EndpointSlice,
    Meta,
    Node,
    NodeSpec,
    Service,
    ServiceCIDR,
    ServiceCIDRSpec,
)
from pointsman.sync.loop import SyncListener

pytestmark = pytest.mark.virtual_time

ADDRESSED = factory.node(addresses=[{"type": "InternalIP", "address": "172.30.0.10"}])


async def test_the_first_sync_waits_for_every_kind() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), factory.endpoint_slice("10.244.1.1"), ADDRESSED)
        world.source.listed(Service, EndpointSlice, Node)
        await asyncio.sleep(25)
        assert world.syncs == 0
        world.source.listed(ServiceCIDR)
        await world.settled()
        assert len(world.backends[Family.IPV4].programmed) == 1


async def test_service_ranges_that_cannot_be_listed_are_done_without() -> None:
    async with assembled(service_range_wait=0.2) as world:
        world.source.put(factory.service(), factory.endpoint_slice("10.244.1.1"), ADDRESSED)
        world.source.listed(Service, EndpointSlice, Node)
        await async_wait_until(lambda: world.syncs > 0)
        assert len(world.backends[Family.IPV4].programmed) == 1
        world.source.put(ServiceCIDR(Meta(name="kubernetes"), ServiceCIDRSpec(cidrs=["10.96.0.0/16"])))
        await async_wait_until(lambda: bool(world.proxy.node.context(Family.IPV4).service_cidrs))
        await world.settled()


async def test_a_missing_node_is_waited_for_and_then_done_without(caplog: pytest.LogCaptureFixture) -> None:
    async with assembled() as world:
        world.source.put(factory.service())
        world.source.listed()
        await asyncio.sleep(25)
        assert world.syncs == 0
        assert not world.proxy.start.gate.is_open
    async with assembled(node_wait=0.1) as world:
        world.source.put(factory.service())
        world.source.listed()
        await async_wait_until(lambda: world.syncs > 0)
    assert "The Node does not exist" in caplog.text


async def test_a_node_that_nobody_could_list_is_not_called_missing(caplog: pytest.LogCaptureFixture) -> None:
    async with assembled(node_wait=0.1) as world:
        world.source.put(factory.service())
        await asyncio.sleep(25)
        assert world.syncs == 0
    assert "The Node could not be listed yet" in caplog.text
    assert "The Node does not exist" not in caplog.text


async def test_a_node_that_has_no_address_yet_is_waited_for_too() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), factory.node(addresses=[]))
        world.source.listed()
        await asyncio.sleep(25)
        assert world.syncs == 0
        world.source.put(ADDRESSED)
        await world.settled()
        assert world.syncs >= 1


async def test_a_pod_range_that_detection_needs_is_waited_for() -> None:
    async with assembled(node_wait=0.1, detect_local_mode="NodeCIDR") as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await asyncio.sleep(25)
        assert world.syncs == 0
        world.source.put(_with_pod_range("10.244.1.0/24"))
        await world.settled()
        assert world.syncs >= 1


async def test_a_node_that_never_gets_its_pod_range_ends_the_proxy_with_the_reason() -> None:
    world = Assembly(node_wait=0.1, pod_range_wait=0.1, detect_local_mode="NodeCIDR")
    world.source.put(ADDRESSED)
    world.source.listed()
    with pytest.raises(ConfigError, match=r"spec\.podCIDRs"):
        await asyncio.wait_for(world.proxy.run(), 20)
    assert world.syncs == 0
    await world.proxy.close()


async def test_a_node_that_nobody_could_list_is_waited_for_without_end() -> None:
    async with assembled(node_wait=0.1, pod_range_wait=0.1, detect_local_mode="NodeCIDR") as world:
        await asyncio.sleep(25)
        world.source.put(_with_pod_range("10.244.1.0/24"))
        world.source.listed()
        await world.settled()
        assert world.syncs >= 1


async def test_a_node_that_never_comes_is_not_blamed_for_its_pod_range() -> None:
    world = Assembly(node_wait=0.1, pod_range_wait=0.1, detect_local_mode="NodeCIDR")
    world.source.listed()
    with pytest.raises(ConfigError, match=r"there is no Node n1.*--hostname-override"):
        await asyncio.wait_for(world.proxy.run(), 20)
    await world.proxy.close()


async def test_a_pod_range_that_detection_no_longer_needs_is_no_longer_waited_for() -> None:
    async with assembled(node_wait=0.01, pod_range_wait=0.3, detect_local_mode="NodeCIDR") as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await asyncio.sleep(0.1)
        world.proxy.apply_config(msgspec.structs.replace(world.proxy.config, detect_local_mode="ClusterCIDR"))
        await world.settled()
        assert world.syncs >= 1
        await asyncio.sleep(25)


async def test_a_node_whose_first_family_the_machine_lacks_is_not_served() -> None:
    world = Assembly(families=[Family.IPV4])
    world.source.put(factory.node(addresses=[{"type": "InternalIP", "address": "2001:db8::1"}]))
    world.source.listed()
    with pytest.raises(ConfigError, match="first address is IPv6"):
        await asyncio.wait_for(world.proxy.run(), 20)
    assert world.syncs == 0
    await world.proxy.close()


async def test_ranges_that_cannot_tell_local_pods_end_the_proxy_with_the_reason() -> None:
    world = Assembly(families=[Family.IPV4], cluster_cidr="fd00:1::/64")
    world.source.put(factory.service(), ADDRESSED)
    world.source.listed()
    with pytest.raises(ConfigError, match="clusterCIDR is IPv6 only"):
        await asyncio.wait_for(world.proxy.run(), 20)
    assert world.syncs == 0
    await world.proxy.close()


async def test_a_configuration_that_cannot_work_on_this_node_is_refused_and_the_old_one_stays() -> None:
    async with assembled(cluster_cidr="10.244.0.0/16") as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await world.settled()
        before = world.proxy.config
        by_node = msgspec.structs.replace(before, detect_local_mode="NodeCIDR")
        with pytest.raises(ConfigError, match=r"n1 has no spec\.podCIDRs"):
            world.proxy.apply_config(by_node)
        assert world.proxy.config is before
        world.source.put(_with_pod_range("10.244.1.0/24"))
        await world.settled()
        world.proxy.apply_config(by_node)
        assert world.proxy.config is by_node


async def test_what_the_node_made_wrong_is_warned_of_once_and_keeps_nobody_from_changing_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with assembled(detect_local_mode="NodeCIDR") as world:
        world.source.put(factory.service(), _with_pod_range("10.244.1.0/24"))
        world.source.listed()
        await world.settled()
        assert "incomplete or incorrect" not in caplog.text
        world.source.put(_with_pod_range("fd00:1::/64"))
        await world.settled()
        world.proxy.apply_config(msgspec.structs.replace(world.proxy.config, oom_score_adj=0))
        assert world.proxy.config.oom_score_adj == 0
        assert caplog.text.count("incomplete or incorrect") == 1
        world.source.put(_with_pod_range("10.244.1.0/24"), _with_pod_range("fd00:1::/64"))
        await world.settled()
        assert caplog.text.count("incomplete or incorrect") == 2


def _with_pod_range(text: str) -> Node:
    return msgspec.structs.replace(ADDRESSED, spec=NodeSpec(pod_cidrs=[text]))


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
            await async_wait_until(lambda: bool(world.recorder.events))
            assert set(world.recorder.events) == {
                ("default/web", "FailedToStartServiceHealthcheck", "Listen")
            }


async def test_service_changes_are_counted_once_per_family_as_kube_proxy_does() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await world.settled()
        assert b"kubeproxy_sync_proxy_rules_service_changes_total 2.0" in world.metrics.render()


async def test_endpoint_changes_are_counted_for_slices_of_a_served_family_and_of_a_service() -> None:
    """As kube-proxy does: it passes over slices of names, of a family it does not serve, and without a Service."""
    async with assembled(families=[Family.IPV4]) as world:
        slices = {
            "served": factory.endpoint_slice("10.244.1.1", name="served"),
            "names": factory.endpoint_slice("example.com", name="names", family="FQDN"),
            "other-family": factory.endpoint_slice("fd00::1", name="other-family", family="IPv6"),
            "stray": factory.endpoint_slice("10.244.1.2", name="stray", metadata={"labels": {}}),
        }
        world.source.put(factory.service(), ADDRESSED, *slices.values())
        world.source.listed()
        await world.settled()
        assert b"kubeproxy_sync_proxy_rules_endpoint_changes_total 1.0" in world.metrics.render()
        for one in slices.values():
            world.source.queue.put_nowait(Delete(EndpointSlice, one.metadata.key))
        await world.settled()
        assert b"kubeproxy_sync_proxy_rules_endpoint_changes_total 2.0" in world.metrics.render()


async def test_addresses_that_cannot_be_read_for_a_moment_do_not_end_the_proxy() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await world.settled()
        before = world.proxy.node.context(Family.IPV4)
        world.machine.failures = [KernelError("no buffer space", errno=errno.ENOBUFS)]
        world.machine.changes.put_nowait(None)
        await async_wait_until(lambda: not world.machine.failures)
        await asyncio.sleep(25)
        assert world.proxy.node.context(Family.IPV4) == before
        world.machine.addresses[Family.IPV4] = (b"\x7f\0\0\1", b"\x0a\0\0\5")
        world.machine.changes.put_nowait(None)
        await async_wait_until(lambda: b"\x0a\0\0\5" in world.proxy.node.addresses[Family.IPV4])


class Told(SyncListener):
    """What was said about the node's addresses."""

    def __init__(self) -> None:
        self.addresses: list[tuple[bytes, ...]] = []

    def on_addresses_changed(self, family: Family, addresses: tuple[bytes, ...]) -> None:
        if family is Family.IPV4:
            self.addresses.append(addresses)


async def test_a_new_address_of_the_node_is_told_although_no_rule_names_it() -> None:
    """Flows to it may have begun while another machine had it."""
    told = Told()
    async with assembled(listeners=(told,)) as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await world.settled()
        syncs = world.syncs
        (at_start,) = told.addresses
        world.machine.changes.put_nowait(None)
        world.machine.addresses[Family.IPV4] = (b"\x7f\0\0\1", b"\x0a\0\0\5")
        world.machine.changes.put_nowait(None)
        await async_wait_until(lambda: len(told.addresses) > 1)
        assert told.addresses == [at_start, (b"\x7f\0\0\1", b"\x0a\0\0\5")]
        assert world.syncs == syncs


async def test_a_bug_met_while_looking_for_drift_does_not_end_the_proxy() -> None:
    async with assembled() as world:
        world.source.put(factory.service(), ADDRESSED)
        world.source.listed()
        await world.settled()
        syncs = world.syncs
        world.backends[Family.IPV4].drifts = [ZeroDivisionError("bug")]
        await async_wait_until(lambda: world.syncs > syncs)
