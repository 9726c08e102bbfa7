"""Blocking work on a thread that holds up neither the event loop nor the end of the process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class CpuMeter:
    """CPU time of work on other threads, so that the pause after it can follow from its cost."""

    def __init__(self) -> None:
        self.total = self.last = 0.0

    def run(self, work: Callable[[], T]) -> T:
        began = time.thread_time()
        try:
            return work()
        finally:
            self.last = time.thread_time() - began
            self.total += self.last


async def run_in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """Run `work` on a thread of its own and return its result.

    asyncio.to_thread would prevent a stop: a process waits for its threads, and a read from a file system that no longer
    answers never returns. Daemon threads are not waited for.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not done.done():
            set_outcome()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  raised where the result is awaited
            outcome = error
            set_outcome: Callable[[], None] = lambda: done.set_exception(outcome)  # noqa: E731
        else:
            set_outcome = lambda: done.set_result(result)  # noqa: E731
        with suppress(RuntimeError):  # the loop has ended, the result is not needed
            loop.call_soon_threadsafe(settle, set_outcome)

    threading.Thread(target=run, daemon=True, name=name).start()
    return await done
