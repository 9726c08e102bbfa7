"""What is particular to a kind: selectors, kinds that a server may not have, objects that cannot be read."""

from __future__ import annotations

import logging

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import endpoint_slice, node, service, service_cidr
from tests.harness.waiting import async_wait_until
from tests.unit.kube.following import both_ways, following, text

from pointsman.kube.resources import ENDPOINT_SLICES, SERVICE_CIDRS, select_own_node
from pointsman.model.objects import EndpointSlice, Node, ServiceCIDR, Synced, Upsert

pytestmark = pytest.mark.usefixtures("protocol")


@both_ways
async def test_undecodable_object_is_left_out_by_name_and_the_rest_kept(watch_list: bool) -> None:
    async with FakeApiServer(watch_list=watch_list) as server:
        server.speaks_protobuf = False
        server.add(service("a"))
        server.add(service("bad", ports=[{"port": "eighty"}], namespace="shop"))
        server.add(service("c"))
        async with following(server) as follower:
            texts = [text(event) for event in await follower.until_synced()]
            assert texts == ["+default/a@101", "+default/c@103", "synced Service"]
            (bad,) = follower.bad
            assert (bad.object.kind, bad.object.key, bad.code.value) == ("Service", "shop/bad", "Undecodable")
            assert "ports[0].port" in str(bad.parameters["detail"])
            assert follower.status.bad_objects == 1
            await async_wait_until(lambda: server.watch_count() == 1)
            server.update(service("bad", namespace="shop"))
            assert await follower.next_text() == "+shop/bad@104"
            assert follower.status.bad_objects == 0


async def test_object_that_becomes_undecodable_keeps_its_last_good_version_until_deleted() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        async with following(server) as follower:
            await follower.until_watching()
            server.update(service("a", clusterIP=17))
            server.compact()
            server.end_watches()
            await async_wait_until(lambda: follower.status.lists == 2)
            assert follower.events.empty()
            assert [bad.object.key for bad in follower.bad] == ["default/a"]
            await async_wait_until(lambda: server.watch_count() == 1)
            server.delete("Service", "default/a")
            assert await follower.next_text() == "-default/a"
            assert follower.status.bad_objects == 0


async def test_selectors_leave_out_what_other_proxies_serve_and_what_is_headless() -> None:
    other = service("other")
    other["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "else"}
    async with FakeApiServer() as server:
        server.add(other)
        server.add(service("headless", "None"))
        server.add(service("mine"))
        async with following(server) as follower:
            assert [text(event) for event in await follower.until_synced()] == [
                "+default/mine@103",
                "synced Service",
            ]
            await async_wait_until(lambda: server.watch_count() == 1)
            given_away = service("mine")
            given_away["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "else"}
            server.update(given_away)
            assert await follower.next_text() == "-default/mine"


async def test_refused_field_selector_is_dropped_when_it_only_saves_traffic() -> None:
    async with FakeApiServer(cluster_ip_field=False) as server:
        server.add(service("headless", "None"))
        async with following(server) as follower:
            assert [text(event) for event in await follower.until_synced()] == [
                "+default/headless@101",
                "synced Service",
            ]
            assert follower.status.failures_total == 0


async def test_only_the_own_node_is_followed() -> None:
    async with FakeApiServer() as server:
        server.add(node("n1"))
        server.add(node("n2"))
        async with following(server, select_own_node("n2")) as follower:
            events = await follower.until_synced()
            assert [text(event) for event in events] == ["+n2@102", "synced Node"]
            assert isinstance(events[0], Upsert)
            assert isinstance(events[0].object, Node)


@both_ways
async def test_server_without_service_cidrs_counts_as_empty_and_is_asked_again_much_later(
    watch_list: bool,
) -> None:
    absent = frozenset({"ServiceCIDR"})
    async with (
        FakeApiServer(missing_kinds=absent) as server,
        following(server, SERVICE_CIDRS, watch_list=watch_list) as follower,
    ):
        assert await follower.next() == Synced(ServiceCIDR)
        assert follower.status.absent
        assert follower.status.failures_total == 0
        server.missing_kinds = frozenset()
        server.add(service_cidr("kubernetes", "10.96.0.0/12"))
        assert await follower.next_text() == "+kubernetes@101"
        assert follower.time.pauses == [750.0]
        assert not follower.status.absent


async def test_forbidden_service_cidrs_count_as_empty() -> None:
    async with FakeApiServer() as server:
        server.fail_next(403, path="servicecidrs")
        async with following(server, SERVICE_CIDRS) as follower:
            assert await follower.next() == Synced(ServiceCIDR)


async def test_missing_required_kind_is_a_failure_not_an_empty_list() -> None:
    async with FakeApiServer() as server:
        server.fail_next(404, path="endpointslices", times=2)
        server.add(endpoint_slice("web-1", "10.1.0.1"))
        async with following(server, ENDPOINT_SLICES) as follower:
            assert len(await follower.until_synced()) == 2
            assert follower.status.failures_total == 2


async def test_endpoints_of_a_node_share_one_name() -> None:
    async with FakeApiServer() as server:
        server.add(endpoint_slice("web-1", "10.1.0.1", "10.1.0.2", node="a-node-with-a-long-name"))
        server.add(endpoint_slice("web-2", "10.1.0.3", node="a-node-with-a-long-name"))
        async with following(server, ENDPOINT_SLICES) as follower:
            names = {
                id(endpoint.node_name)
                for event in await follower.until_synced()
                if isinstance(event, Upsert) and isinstance(event.object, EndpointSlice)
                for endpoint in event.object.endpoints or ()
            }
            assert len(names) == 1


async def test_a_role_that_is_taken_and_given_back_is_noticed_within_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with FakeApiServer(watch_list=False) as server, following(server, watch_list=False) as follower:
        await follower.until_watching()
        server.fail_next(403, path="services", times=30)
        server.break_watches()
        await async_wait_until(lambda: follower.status.failures_total == 31 and server.watch_count() == 1)
        assert max(follower.time.pauses) <= 10.0
        server.add(service("a"))
        assert await follower.next_text() == "+default/a@101"
    said = [entry for entry in caplog.records if entry.getMessage() == "Watch recovered"]
    assert len(said) == 1


async def test_an_optional_kind_that_was_hidden_is_looked_for_every_minute_and_its_return_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with FakeApiServer() as server:
        server.add(service_cidr("kubernetes", "10.96.0.0/12"))
        server.fail_next(403, path="servicecidrs", times=3)
        async with following(server, SERVICE_CIDRS) as follower:
            assert await follower.next() == Synced(ServiceCIDR)
            assert await follower.next_text() == "+kubernetes@101"
            assert follower.time.pauses == [45.0, 45.0, 45.0]
    assert "Kind now available" in caplog.text
