"""What is served where: the routes of the health port (10256) and of the metrics port (10249)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from pointsman.config.gates import FeatureGates
from pointsman.obs.registry import CONTENT_TYPE, Metrics
from pointsman.serve.handlers import require_address
from pointsman.serve.health import ProxyHealth
from pointsman.serve.messages import Handler, Request, Response, reply, text_response
from pointsman.serve.profiling import profiling_routes
from pointsman.serve.readiness import Check, readyz_answer
from pointsman.serve.zpages import flags_page, healthz_text, status_page


def health_routes(
    health: ProxyHealth, metrics: Metrics, checks: Callable[[], Iterable[Check]] = tuple
) -> dict[str, Handler]:
    """/healthz, /livez and /readyz for load balancers, the kubelet and people; the first two are counted by their status."""

    async def healthz(_request: Request) -> Response:
        answer = health.healthz()
        metrics.healthz.labels(code=str(answer.status)).inc()
        return answer

    async def livez(_request: Request) -> Response:
        answer = health.livez()
        metrics.livez.labels(code=str(answer.status)).inc()
        return answer

    async def readyz(_request: Request) -> Response:
        return readyz_answer(tuple(checks()))

    return {"/healthz": healthz, "/livez": livez, "/readyz": readyz}


class Pages(msgspec.Struct, frozen=True):
    """What the metrics port shows; the callbacks are asked at every request, so a reload shows at once."""

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
    """What the process tells about itself, for those who may ask anything."""

    async def exposition(_request: Request) -> Response:
        return reply(metrics.exposition(), CONTENT_TYPE)

    async def configz(_request: Request) -> Response:
        return reply(pages.configuration(), "application/json")

    async def flagz(_request: Request) -> Response:
        return text_response(flags_page(pages.flags()))

    return {"/metrics": exposition, "/configz": configz, "/flagz": flagz}


def metrics_routes(metrics: Metrics, pages: Pages) -> dict[str, Handler]:
    """All paths of the metrics port."""
    described = description_routes(metrics, pages)

    async def slis(_request: Request) -> Response:
        return reply(metrics.sli_exposition(), CONTENT_TYPE)

    async def ping(_request: Request) -> Response:
        return text_response("ok")

    async def healthz(request: Request) -> Response:
        metrics.healthcheck.labels(name="ping", type="healthz").set(1)
        metrics.healthchecks.labels(name="ping", status="success", type="healthz").inc()
        if "verbose" not in request.query:
            return text_response("ok")
        return text_response(healthz_text(request.query.getall("exclude")))

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
        routes |= profiling_routes(pages.set_verbosity)
    if pages.gates.enabled("ComponentStatusz"):
        statusz = status_page(pages.version, sorted({*routes, "/statusz"}))

        async def statusz_page(_request: Request) -> Response:
            return text_response(statusz())

        routes["/statusz"] = require_address(statusz_page)
    return routes
