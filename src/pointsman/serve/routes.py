"""Routes of the health port (10256) and of the metrics port (10249)."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from pointsman.config.gates import FeatureGates
from pointsman.obs.registry import CONTENT_TYPE, Metrics
from pointsman.serve.debug import debug_routes
from pointsman.serve.handlers import require_address
from pointsman.serve.health import HealthView
from pointsman.serve.messages import Handler, Request, Response, reply, text_response

_NOTICE = (
    "Warning: this page is meant for people. Its layout may change at any time; do not build tools on it.\n"
)
_SECOND = 1_000_000_000


def health_routes(health: HealthView, metrics: Metrics) -> dict[str, Handler]:
    """Build /healthz, /livez and /readyz; the first two are counted by their status."""

    async def healthz(_request: Request) -> Response:
        answer = health.healthz()
        metrics.served.healthz.labels(code=str(answer.status)).inc()
        return answer

    async def livez(_request: Request) -> Response:
        answer = health.livez()
        metrics.served.livez.labels(code=str(answer.status)).inc()
        return answer

    async def readyz(_request: Request) -> Response:
        return health.readyz()

    return {"/healthz": healthz, "/livez": livez, "/readyz": readyz}


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


def description_routes(metrics: Metrics, pages: Pages) -> dict[str, Handler]:
    """Build the pages that describe the process, without restrictions."""

    async def exposition(_request: Request) -> Response:
        return reply(metrics.render(), CONTENT_TYPE)

    async def configz(_request: Request) -> Response:
        return reply(pages.configuration(), "application/json")

    async def flagz(_request: Request) -> Response:
        return text_response(format_flagz(pages.flags()))

    return {"/metrics": exposition, "/configz": configz, "/flagz": flagz}


def metrics_routes(metrics: Metrics, pages: Pages) -> dict[str, Handler]:
    """Build all routes of the metrics port."""
    described = description_routes(metrics, pages)

    async def slis(_request: Request) -> Response:
        return reply(metrics.render_slis(), CONTENT_TYPE)

    async def ping(_request: Request) -> Response:
        return text_response("ok")

    async def healthz(request: Request) -> Response:
        metrics.served.check_result.labels(name="ping", type="healthz").set(1)
        metrics.served.check_runs.labels(name="ping", status="success", type="healthz").inc()
        if "verbose" not in request.query:
            return text_response("ok")
        return text_response(format_healthz(request.query.getall("exclude")))

    async def proxy_mode(_request: Request) -> Response:
        return text_response(metrics.mode)

    routes: dict[str, Handler] = {
        "/metrics": described["/metrics"],
        "/metrics/slis": slis,
        "/healthz": healthz,
        "/healthz/ping": ping,
        "/proxyMode": proxy_mode,
        "/configz": require_address(described["/configz"]),
        **pages.extra,
    }
    if pages.gates.enabled("ComponentFlagz"):
        routes["/flagz"] = require_address(described["/flagz"])
    if pages.profiling:
        routes |= debug_routes(pages.set_verbosity)
    if pages.gates.enabled("ComponentStatusz"):
        statusz = make_statusz(pages.version, sorted({*routes, "/statusz"}))

        async def statusz_page(_request: Request) -> Response:
            return text_response(statusz())

        routes["/statusz"] = require_address(statusz_page)
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
