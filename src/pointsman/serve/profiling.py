"""Profiles of the running process under /debug/pprof/, only when profiling is switched on.

Stacks show how a node is built and what it does, so they are given to loopback only. Profiles are
sampled from outside the threads (worker threads included) and printed as collapsed stacks, one line per
stack with its count, which flame graph tools read as they are.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Final

from pointsman.serve.handlers import require_loopback
from pointsman.serve.messages import Handler, Request, Response, text_response

_SAMPLE_SECONDS: Final = 0.01
_MAX_PROFILE_SECONDS: Final = 8.0
_MAX_VERBOSITY_BYTES: Final = 16
_INDEX: Final = """/debug/pprof/ of pointsman

/debug/pprof/goroutine   stacks of all threads and tasks, now
/debug/pprof/profile     where time goes: collapsed stacks sampled for ?seconds=5 (at most 8)
/debug/pprof/heap        live objects by type
/debug/pprof/cmdline     the command line
/debug/flags/v           PUT a number to set the log verbosity
"""


def profiling_routes(set_verbosity: Callable[[int], None]) -> dict[str, Handler]:
    """Routes for profiles and for the log verbosity."""

    async def index(_request: Request) -> Response:
        return text_response(_INDEX)

    async def stacks(_request: Request) -> Response:
        return text_response(stacks_text())

    async def profile(request: Request) -> Response:
        try:
            seconds = float(request.query.get("seconds", "5"))
        except ValueError:
            return text_response("seconds: write a number\n", 400)
        seconds = min(max(seconds, _SAMPLE_SECONDS), _MAX_PROFILE_SECONDS)
        return text_response(await asyncio.to_thread(sampled_profile, seconds))

    async def heap(_request: Request) -> Response:
        return text_response(heap_text())

    async def cmdline(_request: Request) -> Response:
        return text_response("\0".join(sys.orig_argv))

    async def verbosity(request: Request) -> Response:
        if request.method != "PUT":
            return text_response("use PUT with the verbosity as the body\n", 406)
        body = request.body[:_MAX_VERBOSITY_BYTES]
        try:
            level = int(body)
        except ValueError:
            return text_response(f"verbosity {body.decode(errors='replace')!r}: write a number\n", 400)
        set_verbosity(level)
        return text_response(f"successfully set verbosity to {level}\n")

    routes: dict[str, Handler] = {
        "/debug/pprof": index,
        "/debug/pprof/": index,
        "/debug/pprof/goroutine": stacks,
        "/debug/pprof/profile": profile,
        "/debug/pprof/heap": heap,
        "/debug/pprof/cmdline": cmdline,
        "/debug/flags/v": verbosity,
    }
    return {path: require_loopback(handler) for path, handler in routes.items()}


def _collapsed(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(names))


def sampled_profile(seconds: float) -> str:
    """Collapsed stacks of all other threads with the number of samples each was seen in."""
    counts: Counter[str] = Counter()
    own = threading.get_ident()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for ident, frame in sys._current_frames().items():
            if ident != own:
                counts[_collapsed(frame)] += 1
        time.sleep(_SAMPLE_SECONDS)
    return "".join(f"{stack} {count}\n" for stack, count in counts.most_common())


def stacks_text() -> str:
    """Stacks of all threads, then of all asyncio tasks of this loop."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{_indented(frame)}"
        for ident, frame in sys._current_frames().items()
    ]
    for task in asyncio.all_tasks():
        frames = task.get_stack()
        parts.append(f"task {task.get_name()}\n{_indented(frames[-1] if frames else None)}")
    return "\n".join(parts)


def _indented(frame: FrameType | None) -> str:
    lines: list[str] = []
    while frame is not None:
        lines.append(f"    {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}\n")
        frame = frame.f_back
    return "".join(lines)


def heap_text() -> str:
    """The fifty most frequent types among objects the garbage collector knows."""
    counts = Counter(type(item).__qualname__ for item in gc.get_objects())
    return "".join(f"{count:>10} {name}\n" for name, count in counts.most_common(50))
