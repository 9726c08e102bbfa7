"""Waiting for something to become true: by a thread, or by a coroutine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

TIME_FACTOR: Final = float(os.environ.get("POINTSMAN_TEST_TIME_FACTOR", "1"))
"""Timeouts of tests are multiplied by it. `tests.kernel.qemu` sets it for emulated processors."""


def wait_until(
    read: Callable[[], T],
    wanted: Callable[[T], bool] = bool,
    seconds: float = 30.0,
    details: Callable[[], object] = str,
) -> T:
    """Read a value until it is as wanted, and return it. After a timeout fail with the last value and `details`."""
    deadline = time.monotonic() + seconds * TIME_FACTOR
    while True:
        value = read()
        if wanted(value):
            return value
        assert time.monotonic() < deadline, f"still {value!r} after {seconds:.0f} s {details()}"
        time.sleep(0.02)


async def async_wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """The same for a coroutine: other tasks run between two reads."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds * TIME_FACTOR
    while not condition():
        assert clock() < deadline, f"still false after {seconds:.0f} s"
        await asyncio.sleep(0.005)
