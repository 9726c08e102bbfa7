"""A source that always has events leaves time for probes and syncs."""

from __future__ import annotations

import asyncio

import pytest
from tests.factory import service
from tests.harness.assembled import assembled

from pointsman.model.objects import SourceEvent


async def test_others_run_between_events_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.node.proxy.MAX_HANDLING_SECONDS", 0.0)
    async with assembled() as made:
        seen: list[str] = []
        handled = asyncio.Event()

        def handle(_event: SourceEvent) -> None:
            asyncio.get_running_loop().call_soon(seen.append, "other")
            seen.append("event")
            if seen.count("event") == 5:
                handled.set()

        monkeypatch.setattr(made.proxy.objects, "handle", handle)
        made.source.put(*[service(f"s{number}") for number in range(5)])
        await asyncio.wait_for(handled.wait(), 10)
        assert seen[:8] == ["event", "other"] * 4
