"""A debug switch: name the callbacks of the event loop that take too long.

POINTSMAN_SLOW_CALLBACK_MS=100 logs every callback that used more than 100 ms of CPU time: it kept probes and watches
waiting. CPU time instead of elapsed time, so that a busy machine reports nothing. Without the variable nothing is
installed and nothing is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pointsman.obs.log import get_log

VARIABLE = "POINTSMAN_SLOW_CALLBACK_MS"
MESSAGE = "Slow callback"

_log = get_log(__name__)


def watch_callbacks(environment: Mapping[str, str]) -> Callable[[], None]:
    """Measure every callback of this process from now on if the environment requests it; return what ends that."""
    text = environment.get(VARIABLE, "")
    if not text.isascii() or not text.isdigit():
        return lambda: None
    return install(int(text) / 1000)


def install(threshold: float) -> Callable[[], None]:
    """Log callbacks that use more CPU time than `threshold` seconds; return what uninstalls this."""
    handle: Any = asyncio.Handle
    run = handle._run
    clock = time.thread_time

    def run_measured(self: asyncio.Handle) -> None:
        started = clock()
        run(self)
        used = clock() - started
        if used > threshold:
            _log.warning(MESSAGE, callback=describe_callback(self), cpu_ms=round(used * 1000))

    def uninstall() -> None:
        handle._run = run

    handle._run = run_measured
    return uninstall


def describe_callback(handle: asyncio.Handle) -> str:
    """Return the name of a callback; of a task, the coroutines down to the one that waits now."""
    callback = getattr(handle, "_callback", None)
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"{task.get_name()}: {' > '.join(_walk_coroutines(task.get_coro()))}"
    return getattr(callback, "__qualname__", None) or repr(callback)


def _walk_coroutines(coroutine: Any) -> Iterator[str]:
    while coroutine is not None and hasattr(coroutine, "__qualname__"):
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        yield coroutine.__qualname__ + (f":{frame.f_lineno}" if frame is not None else "")
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
