"""Routes of the health port (10256) and of the metrics port (10249)."""

from __future__ import annotations

import asyncio
import platform
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FrameType
from typing import Final

import msgspec
from prometheus_client import Counter

from pointsman.config.gates import FeatureGates
from pointsman.obs.registry import CONTENT_TYPE, Metrics
from pointsman.serve.health import HealthView
from pointsman.serve.messages import (
    Handler,
    Request,
    Response,
    reply,
    require_address,
    require_loopback,
    text_response,
)

_NOTICE = (
    "Warning: this page is meant for people. Its layout may change at any time; do not build tools on it.\n"
)
_SECOND = 1_000_000_000
_MAX_VERBOSITY_BYTES: Final = 16
_INDEX: Final = """/debug/pprof/ of pointsman

/debug/pprof/goroutine   stacks of all threads and tasks
/debug/flags/v           PUT a number to set the log verbosity
"""


def _ignore_request(build: Callable[[], Response]) -> Handler:
    """Return a handler whose response does not depend on the request."""

    async def handler(_request: Request) -> Response:
        return build()

    return handler


def build_health_routes(health: HealthView, metrics: Metrics) -> dict[str, Handler]:
    """Build /healthz, /livez and /readyz; the first two are counted by their status."""

    def count(answer: Response, counter: Counter) -> Response:
        counter.labels(code=str(answer.status)).inc()
        return answer

    return {
        "/healthz": _ignore_request(lambda: count(health.healthz(), metrics.served.healthz)),
        "/livez": _ignore_request(lambda: count(health.livez(), metrics.served.livez)),
        "/readyz": _ignore_request(health.readyz),
    }


class Pages(msgspec.Struct, frozen=True):
    """What the metrics port shows; the callbacks are called at every request, so a reload shows at once."""

    configuration: Callable[[], bytes]
    """JSON of the effective configuration in its external form, under the key kubeproxy.config.k8s.io."""
    flags: Callable[[], Mapping[str, str]]
    version: str
    gates: FeatureGates
    profiling: bool = False
    set_verbosity: Callable[[int], None] = lambda _level: None
    extra: Mapping[str, Handler] = {}
    """Further routes, such as the status page at `/`."""


def build_description_routes(metrics: Metrics, pages: Pages) -> dict[str, Handler]:
    """Build the pages that describe the process, without restrictions."""
    return {
        "/metrics": _ignore_request(lambda: reply(metrics.render(), CONTENT_TYPE)),
        "/configz": _ignore_request(lambda: reply(pages.configuration(), "application/json")),
        "/flagz": _ignore_request(lambda: text_response(format_flagz(pages.flags()))),
    }


def build_metrics_routes(metrics: Metrics, pages: Pages) -> dict[str, Handler]:
    """Build all routes of the metrics port."""
    described = build_description_routes(metrics, pages)

    async def healthz(request: Request) -> Response:
        metrics.served.check_result.labels(name="ping", type="healthz").set(1)
        metrics.served.check_runs.labels(name="ping", status="success", type="healthz").inc()
        if "verbose" not in request.query:
            return text_response("ok")
        return text_response(format_healthz(request.query.getall("exclude")))

    routes: dict[str, Handler] = {
        "/metrics": described["/metrics"],
        "/metrics/slis": _ignore_request(lambda: reply(metrics.render_slis(), CONTENT_TYPE)),
        "/healthz": healthz,
        "/healthz/ping": _ignore_request(lambda: text_response("ok")),
        "/proxyMode": _ignore_request(lambda: text_response(metrics.mode)),
        "/configz": require_address(described["/configz"]),
        **pages.extra,
    }
    if pages.gates.enabled("ComponentFlagz"):
        routes["/flagz"] = require_address(described["/flagz"])
    if pages.profiling:
        routes |= build_debug_routes(pages.set_verbosity)
    if pages.gates.enabled("ComponentStatusz"):
        statusz = make_statusz(pages.version, sorted({*routes, "/statusz"}))
        routes["/statusz"] = require_address(_ignore_request(lambda: text_response(statusz())))
    return routes


def format_flagz(flags: Mapping[str, str]) -> str:
    """Return the body of /flagz: every flag and its value, sorted."""
    lines = [f"{name}={flags[name]}" for name in sorted(flags)]
    return "\n".join(["", "kube-proxy flagz", _NOTICE, *lines, ""])


def format_healthz(excluded: Collection[str]) -> str:
    """List every check of the metrics port's /healthz (there is one), as kube-proxy does."""
    unknown = ", ".join(f'"{name}"' for name in sorted({*excluded} - {"ping"}))
    lines = ["[+]ping excluded: ok" if "ping" in excluded else "[+]ping ok"]
    if unknown:
        lines.append(f"warn: some health checks cannot be excluded: no matches for {unknown}")
    return "\n".join([*lines, "healthz check passed", ""])


def format_uptime(nanoseconds: int) -> str:
    minutes, seconds = divmod(nanoseconds // _SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} hr {minutes:02d} min {seconds:02d} sec"


def make_statusz(
    version: str,
    paths: Sequence[str],
    *,
    wall: Callable[[], int] = time.time_ns,
    monotonic: Callable[[], int] = time.monotonic_ns,
) -> Callable[[], str]:
    """Return a function that renders /statusz; the moment of this call counts as the start."""
    started = time.strftime("%a %b %e %H:%M:%S UTC %Y", time.gmtime(wall() // _SECOND))
    began = monotonic()

    def page() -> str:
        return "\n".join(
            [
                "",
                "kube-proxy statusz",
                _NOTICE,
                f"Started: {started}",
                f"Up: {format_uptime(monotonic() - began)}",
                f"Python version: {platform.python_version()}",
                f"Binary version: {version}",
                "",
                f"Paths: {' '.join(paths)}",
                "",
            ]
        )

    return page


def build_debug_routes(set_verbosity: Callable[[int], None]) -> dict[str, Handler]:
    """Build the routes for stacks and for the log verbosity, only for clients on loopback: stacks show what a node does.

    kube-proxy serves Go's profiles under /debug/pprof/, in a format of Go's own. Of those, only the text of all stacks makes
    sense for this process; a sampling profiler attaches from outside (docs/metrics.md).
    """

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

    index = _ignore_request(lambda: text_response(_INDEX))
    routes: dict[str, Handler] = {
        "/debug/pprof": index,
        "/debug/pprof/": index,
        "/debug/pprof/goroutine": _ignore_request(lambda: text_response(format_stacks())),
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
