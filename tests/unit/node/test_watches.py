"""Conditions and metrics of watches, and of the API server behind them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.harness.waiting import async_wait_until

from pointsman.conditions import Blocks, Condition
from pointsman.errors import KubeError
from pointsman.kube.access import Access
from pointsman.kube.client import ApiClient
from pointsman.kube.status import WatchStatus
from pointsman.model.findings import Code, Finding, ObjectReference, Severity
from pointsman.model.objects import SourceEvent
from pointsman.node.watches import WatchConditions, expose_watches
from pointsman.obs.registry import Metrics
from pointsman.source.api import ApiSource


class Source:
    """A source that delivered something once, and two objects that cannot be used."""

    def __init__(self) -> None:
        self._status = WatchStatus(truncated=2, failures_total=3)
        self._status.note_data(time.monotonic())

    @property
    def statuses(self) -> Mapping[str, WatchStatus]:
        return {"Service": self._status}

    server, advice = "https://10.96.0.1:443", "give another address"

    async def list_node_names(self) -> list[str]:
        return []

    async def events(self) -> AsyncIterator[SourceEvent]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("ages", [True, False])
def test_a_watch_has_an_age_and_a_directory_has_none(ages: bool) -> None:
    metrics = Metrics("nftables")
    expose_watches(Source(), metrics, ages=ages)
    text = metrics.render().decode()
    assert ('pointsman_watch_age_seconds{resource="Service"}' in text) is ages
    assert 'pointsman_watch_failures_total{resource="Service"} 3.0' in text
    assert 'pointsman_objects_unusable{resource="Service"} 2.0' in text


def test_a_kind_that_the_server_does_not_have_has_no_age() -> None:
    metrics, source = Metrics("nftables"), Source()
    source.statuses["Service"].absent = True
    expose_watches(source, metrics, ages=True)
    assert "pointsman_watch_age_seconds" not in metrics.render().decode()


class Watched(Source):
    """Two watches, and the conditions that follow from them."""

    def __init__(self) -> None:
        self.now = 0.0
        self._watches = {"Service": WatchStatus(), "Node": WatchStatus()}
        self._conditions = WatchConditions(self, clock=lambda: self.now)

    @property
    def statuses(self) -> Mapping[str, WatchStatus]:
        return self._watches

    def _current(self) -> list[Condition]:
        return [*self._conditions.server_conditions(), *self._conditions.conditions()]

    def condition(self, type_: str) -> Condition:
        (found,) = [one for one in self._current() if one.type == type_]
        return found

    @property
    def failing(self) -> list[str]:
        return [one.type for one in self._current() if one.is_failing]


def test_no_answer_is_reported_long_before_the_attempt_ends() -> None:
    source = Watched()
    assert source.failing == []
    source.now = 3.0
    assert source.failing == ["APIServer"]
    found = source.condition("APIServer")
    assert found.text == (
        "cannot reach the API server at https://10.96.0.1:443: no answer for 3 s: give another address"
    )
    assert found.does_block(Blocks.SERVICES)
    assert not found.does_block(Blocks.READINESS)


def test_an_answer_makes_the_server_reachable_and_an_address_that_worked_is_not_doubted() -> None:
    source = Watched()
    services, node = source.statuses.values()
    for watch in (services, node):
        watch.note_failure("Connection refused", answered=False)
    assert source.failing == ["APIServer"]
    assert source.condition("APIServer").remedy == "give another address"
    services.note_failure("HTTP 403", answered=True)
    assert source.failing == ["WatchService", "WatchNode"]
    services.note_data(0.0)
    services.synced = True
    assert source.failing == ["WatchNode"]
    services.note_failure("Connection refused", answered=False)
    assert source.failing == ["APIServer"]
    assert "address" not in source.condition("APIServer").remedy


def test_a_kind_that_the_server_does_not_have_is_no_failure() -> None:
    source = Watched()
    for watch in source.statuses.values():
        watch.absent = True
    source.now = 60.0
    assert source.failing == []


def test_a_watch_that_fails_is_a_condition_whatever_objects_it_delivered() -> None:
    source = Watched()
    services, node = source.statuses.values()
    node.note_open()
    services.note_open()
    services.truncated = 1
    services.note_failure("forbidden")
    assert source.failing == ["WatchService", "ObjectsService"]


def test_objects_that_cannot_be_used_are_named() -> None:
    source = Watched()
    services, node = source.statuses.values()
    services.note_open()
    node.note_open()
    services.rejected["shop/web"] = Finding(
        Code.UNDECODABLE,
        Severity.ERROR,
        ObjectReference("Service", "shop/web"),
        {"detail": "ports: expected a list"},
    )
    services.truncated = 2
    assert source.failing == ["ObjectsService"]
    found = source.condition("ObjectsService")
    assert found.message.startswith("3 objects cannot be used: ")
    assert "ports: expected a list" in found.message


async def test_a_request_without_an_answer_says_nothing_while_a_watch_is_connected() -> None:
    async with FakeApiServer() as server:
        client = ApiClient(Access(server.url, "test"), environ={}, burst=100)
        source = ApiSource(client, node_name="n1")
        conditions = WatchConditions(source)
        following = asyncio.create_task(anext(source.events()))
        await async_wait_until(lambda: all(watch.connected for watch in source.statuses.values()))
        server.answer_raw(b"", path="events")
        with pytest.raises(KubeError):
            await client.request("POST", "/apis/events.k8s.io/v1/namespaces/default/events", body=b"{}")
        assert not [
            one for one in (*conditions.server_conditions(), *conditions.conditions()) if not one.is_true
        ]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await source.close()
        await client.close()
