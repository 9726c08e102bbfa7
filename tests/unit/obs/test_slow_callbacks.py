"""Callbacks that keep the event loop busy are named, and only where that is requested."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from pointsman.obs.slow_callbacks import MESSAGE, VARIABLE, watch_callbacks


def _use_cpu(seconds: float = 0.03) -> None:
    started = time.thread_time()
    while time.thread_time() - started < seconds:
        pass


async def _work() -> None:
    _use_cpu()
    await asyncio.sleep(0)


async def _outer() -> None:
    await _work()


def _find_slow(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.__dict__.get("fields", {}).get("callback", record.getMessage()) for record in caplog.records
    ]


@pytest.fixture
def watched() -> Iterator[None]:
    end = watch_callbacks({VARIABLE: "10"})
    yield
    end()


@pytest.mark.usefixtures("watched")
def test_a_slow_task_is_named_with_the_coroutine_that_waits(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(_outer())
    assert MESSAGE in caplog.text
    assert "_outer" in repr(_find_slow(caplog))
    assert "_work" in repr(_find_slow(caplog))


@pytest.mark.usefixtures("watched")
def test_a_slow_callback_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(_use_cpu)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert "_use_cpu" in repr(_find_slow(caplog))


@pytest.mark.usefixtures("watched")
def test_waiting_is_not_slow(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(time.sleep, 0.03)
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert not caplog.records


@pytest.mark.parametrize("environment", [{}, {VARIABLE: ""}, {VARIABLE: "much"}])
def test_nothing_is_installed_unless_requested(environment: dict[str, str]) -> None:
    before = asyncio.Handle._run
    watch_callbacks(environment)
    assert asyncio.Handle._run is before
