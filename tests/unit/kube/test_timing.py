"""Waiting, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fake.skipping_clock import SkippingClock

from pointsman.kube.timing import RateLimit, make_server_backoff


async def test_burst_is_free_and_the_rest_is_spaced() -> None:
    time = SkippingClock()
    limit = RateLimit(5, 10, clock=time.clock, sleep=time.sleep)
    for _ in range(13):
        await limit.take()
    assert time.pauses == pytest.approx([0.2, 0.2, 0.2])


async def test_waiting_requests_queue_up_behind_each_other() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    limit = RateLimit(1, 1, clock=lambda: 0.0, sleep=sleep)
    await asyncio.gather(*(limit.take() for _ in range(4)))
    assert pauses == pytest.approx([1, 2, 3])


async def test_no_rate_means_no_limit() -> None:
    time = SkippingClock()
    limit = RateLimit(0, 1, clock=time.clock, sleep=time.sleep)
    for _ in range(100):
        await limit.take()
    assert time.pauses == []


def test_try_take_refills_with_time() -> None:
    time = SkippingClock()
    limit = RateLimit(0.5, 2, clock=time.clock)
    assert [limit.try_take() for _ in range(3)] == [True, True, False]
    time.now += 2
    assert [limit.try_take() for _ in range(2)] == [True, False]


@given(st.integers(), st.integers(min_value=1, max_value=40))
def test_back_off_grows_within_its_bounds(seed: int, attempts: int) -> None:
    backoff = make_server_backoff(random.Random(seed).uniform)
    pauses = [backoff.pause() for _ in range(attempts)]
    for index, pause in enumerate(pauses):
        step = min(30.0, 0.8 * 2**index)
        assert step <= pause <= min(30.0, 2 * step)
    backoff.reset()
    assert backoff.pause() <= 1.6
