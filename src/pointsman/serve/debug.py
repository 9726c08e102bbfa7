"""/debug of the metrics port, only when profiling is switched on, and only for clients on loopback: stacks show what a node does.

kube-proxy serves Go's profiles under /debug/pprof/, in a format of Go's own. Of those, only the text of all stacks makes
sense for this process; a sampling profiler attaches from outside (docs/metrics.md).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from pointsman.serve.handlers import require_loopback
from pointsman.serve.messages import Handler, Request, Response, text_response

_MAX_VERBOSITY_BYTES: Final = 16
_INDEX: Final = """/debug/pprof/ of pointsman

/debug/pprof/goroutine   stacks of all threads and tasks
/debug/flags/v           PUT a number to set the log verbosity
"""


def debug_routes(set_verbosity: Callable[[int], None]) -> dict[str, Handler]:
    """Build the routes for stacks and for the log verbosity."""

    async def index(_request: Request) -> Response:
        return text_response(_INDEX)

    async def stacks(_request: Request) -> Response:
        return text_response(format_stacks())

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
        "/debug/flags/v": verbosity,
    }
    return {path: require_loopback(handler) for path, handler in routes.items()}


def format_stacks() -> str:
    """Return the stacks of all threads, then of all asyncio tasks of this loop."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{_format_frames(frame)}"
        for ident, frame in sys._current_frames().items()
    ]
    for task in asyncio.all_tasks():
        frames = task.get_stack()
        parts.append(f"task {task.get_name()}\n{_format_frames(frames[-1] if frames else None)}")
    return "\n".join(parts)


def _format_frames(frame: FrameType | None) -> str:
    lines: list[str] = []
    while frame is not None:
        lines.append(f"    {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}\n")
        frame = frame.f_back
    return "".join(lines)
