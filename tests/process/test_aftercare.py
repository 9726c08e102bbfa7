"""What follows a sync: leftovers of other modes go in the end, and nothing happens after the end of a proxy."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests import factory
from tests.process.assembled import until

from pointsman.backends.contract import Fate, Removed, SyncReport
from pointsman.errors import Busy
from pointsman.model.addresses import Family
from pointsman.node import aftercare
from pointsman.node.aftercare import Aftercare
from pointsman.obs.registry import Metrics
from pointsman.sync.reconcile import SyncOutcome
from pointsman.sync.stale import CleanReport, StaleFlowCleaner


def _outcome(family: Family) -> SyncOutcome:
    return SyncOutcome(SyncReport(full=True), {}, {}, factory.context(family), 0.0, first=True)


async def test_leftovers_go_only_after_every_family_and_are_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aftercare, "RETRY_SECONDS", 0.01)
    attempts: list[int] = []

    def remove() -> list[Removed]:
        attempts.append(1)
        if len(attempts) == 1:
            raise Busy("somebody holds the xtables lock")
        return [Removed("chain", "A", fate=Fate.FAILED if len(attempts) == 2 else Fate.REMOVED)]

    care = Aftercare([Family.IPV4, Family.IPV6], Metrics("nftables"), remove)
    care.synced(Family.IPV4, _outcome(Family.IPV4))
    care.synced(Family.IPV4, _outcome(Family.IPV4))
    await asyncio.sleep(0.05)
    assert attempts == []
    care.synced(Family.IPV6, _outcome(Family.IPV6))
    await until(lambda: len(attempts) == 3)
    await asyncio.sleep(0.05)
    await care.close()
    assert len(attempts) == 3


def test_nothing_runs_after_the_end_and_the_loop_is_never_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aftercare, "RETRY_SECONDS", 0.01)
    complaints: list[object] = []
    let_go, begun = threading.Event(), threading.Event()

    def remove() -> list[Removed]:
        begun.set()
        let_go.wait(5)
        raise Busy("still held")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, details: complaints.append(details))
        care = Aftercare([Family.IPV4], Metrics("nftables"), remove)
        care.synced(Family.IPV4, _outcome(Family.IPV4))
        await until(begun.is_set)
        closing = asyncio.create_task(care.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        let_go.set()
        await closing
        care.synced(Family.IPV4, _outcome(Family.IPV4))
        await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert complaints == []


def test_where_node_ports_answer_everywhere_flows_to_any_own_address_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[bytes, ...]] = []
    monkeypatch.setattr(
        StaleFlowCleaner,
        "add",
        lambda self, changes, context, everything: seen.append(context.local_addresses),
    )

    async def scenario() -> None:
        care = Aftercare([Family.IPV4], Metrics("iptables"), list)
        care.synced(Family.IPV4, _outcome(Family.IPV4), (b"\x0a\x01\x02\x03",))
        await care.close()

    asyncio.run(scenario())
    assert seen == [(b"\x0a\x01\x02\x03",)]


async def test_what_came_while_flows_were_checked_is_checked_at_once_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aftercare, "RETRY_SECONDS", 3600.0)
    let_go, begun = threading.Event(), threading.Event()
    notes: list[str] = []
    runs: list[list[str]] = []

    def run(self: StaleFlowCleaner) -> CleanReport:
        taken = list(notes)
        runs.append(taken)
        begun.set()
        let_go.wait(5)
        del notes[: len(taken)]
        return CleanReport()

    def add(self: StaleFlowCleaner, changes: object, context: object, everything: bool) -> bool:
        notes.append("flow")
        return True

    monkeypatch.setattr(StaleFlowCleaner, "add", add)
    monkeypatch.setattr(StaleFlowCleaner, "waiting", property(lambda self: len(notes)))
    monkeypatch.setattr(StaleFlowCleaner, "run", run)

    care = Aftercare([Family.IPV4], Metrics("iptables"), list)
    care.synced(Family.IPV4, _outcome(Family.IPV4))
    await until(begun.is_set)
    care.synced(Family.IPV4, _outcome(Family.IPV4))
    let_go.set()
    await until(lambda: len(runs) == 2)
    await care.close()
