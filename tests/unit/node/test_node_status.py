"""The condition and the start-up taint of the Node object, against the fake API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.fake.apiserver import FakeApiServer
from tests.fake.skipping_clock import SkippingClock
from tests.harness.kube_objects import node
from tests.harness.waiting import async_wait_until

from pointsman.conditions import Blocks, Condition, ConditionBoard
from pointsman.errors import KubeError
from pointsman.kube.client import ApiClient
from pointsman.model.objects import Node
from pointsman.node.node_status import SERVICES_READY, START_SECONDS, STARTUP_TAINT, NodeStatus, summarize

KUBELET = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
OURS = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
OTHERS = [
    {"key": "example.com/gpu", "effect": "NoSchedule"},
    {"key": "example.com/new", "effect": "NoExecute"},
]

SYNCED = Condition.true("SyncIPv4", Blocks.READINESS)
NOT_SYNCED = Condition.unknown("SyncIPv4", "NotSyncedYet", "no sync yet", blocks=Blocks.READINESS)
FAILED = Condition.false("SyncIPv4", "SyncFailed", "out of memory", blocks=Blocks.READINESS)
NOT_PROBED = Condition.unknown("DatapathIPv4", "NotProbedYet", "not probed yet", blocks=Blocks.READINESS)
DRAINING = Condition.false("Running", "Draining", "the process is shutting down", blocks=Blocks.TRAFFIC)
DEGRADED = Condition.false("FlowCleanup", "CleanupFailed", "no flows", blocks=Blocks.NOTHING)


class Watched:
    """The status of a Node, with a watch that delivers at once unless `seen` is an older version."""

    def __init__(self, server: FakeApiServer, client: ApiClient, **flags: bool) -> None:
        self.server, self.time = server, SkippingClock()
        self.board = ConditionBoard()
        self.seen: Node | None = None
        self.status = NodeStatus(
            client,
            "n1",
            self.board,
            lambda: self.seen or msgspec.convert(self.stored, Node),
            writes_condition=flags.get("condition", True),
            removes_taint=flags.get("taint", True),
            clock=self.time.clock,
            sleep=self.time.sleep,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.time.now - 1000),
        )

    @property
    def stored(self) -> dict[str, Any]:
        return self.server.store.get("Node", "n1")

    @property
    def taints(self) -> list[dict[str, Any]]:
        taints: list[dict[str, Any]] = self.stored["spec"]["taints"]
        return taints

    @property
    def written(self) -> dict[str, Any]:
        """Our condition; empty while there is none."""
        found = [one for one in self.stored["status"]["conditions"] if one["type"] == SERVICES_READY]
        assert len(found) <= 1
        return found[0] if found else {}

    @property
    def word(self) -> tuple[str, str]:
        """Status and reason."""
        return self.written.get("status", ""), self.written.get("reason", "")

    @property
    def patches(self) -> int:
        return sum(seen.method == "PATCH" for seen in self.server.requests)

    def set_taints(self, *taints: dict[str, Any]) -> None:
        self.server.update({**self.stored, "spec": {"taints": list(taints)}})

    async def update(self, *conditions: Condition, after: float = 0.0) -> None:
        self.time.now += after
        self.board.replace("test", conditions)
        await self.status.update()


@contextlib.asynccontextmanager
async def watched(*taints: dict[str, Any], **flags: bool) -> AsyncIterator[Watched]:
    async with FakeApiServer() as server:
        item = node("n1", spec={"taints": list(taints)})
        server.add({**item, "status": {"conditions": [KUBELET]}})
        client = ApiClient(server.access, qps=0, environ={})
        try:
            yield Watched(server, client, **flags)
        finally:
            await client.close()


def test_the_worst_condition_that_blocks_readiness_is_named() -> None:
    assert summarize([SYNCED, DEGRADED]).status.value == "True"
    assert summarize([SYNCED, NOT_PROBED]).reason == "NotProbedYet"
    assert summarize([NOT_PROBED, FAILED]).message == "SyncIPv4: out of memory"
    assert summarize([FAILED, DRAINING]).reason == "Draining"


async def test_a_change_is_written_and_the_kubelets_conditions_stay() -> None:
    async with watched() as node:
        await node.update(SYNCED)
        assert node.word == ("True", "NothingBlocksReadiness")
        assert node.written["lastTransitionTime"] == "2026-01-01T00:00:00Z"
        await node.update(FAILED, after=20)
        assert node.word == ("False", "SyncFailed")
        assert node.written["lastTransitionTime"] == "2026-01-01T00:00:20Z"
        await node.update(DRAINING, after=20)
        assert node.word == ("False", "Draining")
        assert node.written["lastTransitionTime"] == "2026-01-01T00:00:20Z"
        assert KUBELET in node.stored["status"]["conditions"]


async def test_nothing_is_written_while_nothing_changes() -> None:
    async with watched() as node:
        for _ in range(5):
            await node.update(SYNCED, after=3600)
        assert node.patches == 1


async def test_changes_are_written_at_most_every_ten_seconds_and_other_messages_every_minute() -> None:
    async with watched() as node:
        await node.update(SYNCED)
        await node.update(FAILED, after=3)
        assert node.word[0] == "True"
        await node.update(FAILED, after=7)
        assert node.word[0] == "False"
        other = msgspec.structs.replace(FAILED, message="still out of memory")
        await node.update(other, after=30)
        assert node.written["message"] == "SyncIPv4: out of memory"
        await node.update(other, after=30)
        assert node.written["message"] == "SyncIPv4: still out of memory"
        assert node.patches == 3


async def test_a_proxy_that_starts_leaves_the_condition_until_it_knows_better() -> None:
    async with watched() as node:
        await node.update(NOT_SYNCED, after=START_SECONDS / 2)
        assert node.word == ("", "")
        await node.update(NOT_SYNCED, after=START_SECONDS / 2)
        assert node.word == ("Unknown", "NotSyncedYet")


async def test_a_node_that_was_created_again_gets_the_condition_again() -> None:
    async with watched(OURS) as node:
        await node.update(SYNCED)
        item = node.stored
        node.server.delete("Node", "n1")
        node.server.add(
            {**item, "metadata": {"name": "n1"}, "spec": {"taints": [OURS]}, "status": {"conditions": []}}
        )
        await node.update(SYNCED, after=3)
        assert node.word[0] == "True"
        assert node.taints == []


async def test_what_another_program_wrote_is_replaced_with_the_next_change() -> None:
    async with watched() as node:
        await node.update(SYNCED)
        foreign = {"type": SERVICES_READY, "status": "False", "reason": "Foreign"}
        node.server.update({**node.stored, "status": {"conditions": [KUBELET, foreign]}})
        await node.update(SYNCED, after=20)
        assert node.word == ("False", "Foreign")
        await node.update(DRAINING, after=20)
        assert node.word == ("False", "Draining")


async def test_a_proxy_that_stops_says_so() -> None:
    async with watched() as node:
        await node.update(SYNCED)
        await node.status.report_stopped()
        assert node.word == ("Unknown", "ProxyStopped")


async def test_a_stop_does_not_wait_for_an_api_server_that_refuses() -> None:
    async with watched() as node:
        await node.update(SYNCED)
        node.server.fail_next(500)
        await node.status.report_stopped()
        assert node.word[0] == "True"


async def test_the_taint_goes_with_the_first_sync_and_probe_and_others_stay() -> None:
    first, last = OTHERS
    async with watched(first, OURS, last, {**OURS, "effect": "NoExecute"}) as node:
        await node.update(NOT_SYNCED)
        await node.update(SYNCED, NOT_PROBED, after=3)
        assert OURS in node.taints
        await node.update(SYNCED, Condition.true("DatapathIPv4"), DEGRADED, after=3)
        assert node.taints == [first, last]


async def test_a_list_of_taints_that_changed_meanwhile_is_left_until_the_watch_delivers_it() -> None:
    async with watched(OURS) as node:
        node.seen = msgspec.convert(node.stored, Node)
        node.set_taints(OTHERS[0], OURS)
        await node.update(SYNCED)
        await node.update(SYNCED)
        assert node.taints == [OTHERS[0], OURS]
        assert node.patches == 2  # of the taint and of the condition
        node.seen = None
        await node.update(SYNCED)
        assert node.taints == [OTHERS[0]]


@pytest.mark.parametrize(("condition", "taint"), [(True, False), (False, True)])
async def test_each_of_the_two_can_be_on_alone(condition: bool, taint: bool) -> None:
    async with watched(OURS, condition=condition, taint=taint) as node:
        await node.update(SYNCED)
        await node.status.report_stopped()
        assert bool(node.written) is condition
        assert (OURS not in node.taints) is taint


async def test_a_taint_that_may_not_be_removed_does_not_keep_the_condition_from_being_written() -> None:
    async with watched(OURS) as node:
        node.server.fail_next(403)
        with pytest.raises(KubeError, match="403"):
            await node.update(SYNCED)
        assert node.word[0] == "True"


async def test_failures_are_retried_more_and_more_slowly_and_are_a_condition() -> None:
    async with watched() as node:
        node.board.replace("test", [SYNCED])
        node.server.fail_next(403, times=10_000)
        task = asyncio.create_task(node.status.run())

        def is_true() -> bool:
            return all(one.is_true for one in node.status.conditions())

        try:
            await async_wait_until(lambda: len(node.time.pauses) >= 4)
            assert not is_true()
            node.server.clear_faults()
            await async_wait_until(is_true)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert node.word[0] == "True"
        first, *_, fourth = node.time.pauses[:4]
        assert fourth > 3 * first
