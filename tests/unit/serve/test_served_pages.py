"""Paths, bodies and headers of the health port and of the metrics port."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import aiohttp
import pytest

from pointsman.conditions import NODE_ELIGIBLE, Blocks, Condition, ConditionBoard
from pointsman.config.gates import FeatureGates
from pointsman.model.addresses import Family
from pointsman.obs.registry import Metrics
from pointsman.serve.health import HealthView
from pointsman.serve.listeners import Listener
from pointsman.serve.messages import Handler, Request, Response, route, text_response
from pointsman.serve.routes import (
    Pages,
    build_health_routes,
    build_metrics_routes,
    format_flagz,
    format_uptime,
    make_statusz,
)

CANNOT_EXCLUDE = 'warn: some health checks cannot be excluded: no matches for "x"\n'
SECOND = 1_000_000_000


def pages(
    *,
    profiling: bool = False,
    set_verbosity: Callable[[int], None] = print,
    extra: Mapping[str, Handler] | None = None,
    gates: FeatureGates | None = None,
) -> Pages:
    return Pages(
        configuration=lambda: b'{"kubeproxy.config.k8s.io":{}}',
        flags=lambda: {"v": "2", "proxy-mode": "nftables"},
        version="v1.2.3",
        profiling=profiling,
        set_verbosity=set_verbosity,
        extra=extra or {},
        gates=gates or FeatureGates({}),
    )


async def asked(
    routes: Mapping[str, Handler],
    *paths: str,
    method: str = "GET",
    data: bytes | None = None,
    bind: str = "127.0.0.1:0",
    host: str = "",
) -> list[tuple[int, Mapping[str, str], str]]:
    """Serve the routes and ask for each path in turn."""
    listener = Listener("test", route(routes))
    await listener.start(bind)
    address, port = listener.addresses[0]
    headers = {"Host": host} if host else {}
    answers: list[tuple[int, Mapping[str, str], str]] = []
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        for path in paths:
            async with session.request(
                method, f"http://{address}:{port}{path}", data=data, headers=headers
            ) as answer:
                answers.append((answer.status, dict(answer.headers), await answer.text()))
    await listener.stop()
    return answers


async def test_health_port_serves_healthz_and_livez_and_counts_them() -> None:
    metrics, board = Metrics("nftables"), ConditionBoard()
    board.replace("node", [Condition.false(NODE_ELIGIBLE, "NodeUnknown", "", blocks=Blocks.TRAFFIC)])
    health = HealthView(board, {Family.IPV4: 30 * SECOND})
    answers = await asked(build_health_routes(health, metrics), "/healthz", "/livez", "/livez", "/", "/nope")
    assert [status for status, _, _ in answers] == [503, 200, 200, 404, 404]
    for _, headers, _ in answers[:3]:
        assert headers["Content-Type"] == "application/json"
        assert headers["X-Content-Type-Options"] == "nosniff"
    board.replace("node", [Condition.true(NODE_ELIGIBLE, Blocks.TRAFFIC)])
    assert (await asked(build_health_routes(health, metrics), "/healthz"))[0][0] == 200
    text = metrics.render().decode()
    assert 'kubeproxy_proxy_healthz_total{code="503"} 1.0' in text
    assert 'kubeproxy_proxy_healthz_total{code="200"} 1.0' in text
    assert 'kubeproxy_proxy_livez_total{code="200"} 2.0' in text


async def test_plain_pages() -> None:
    routes = build_metrics_routes(Metrics("nftables"), pages())
    (ok, ping, mode, config) = await asked(routes, "/healthz", "/healthz/ping", "/proxyMode", "/configz")
    assert (ok[0], ok[2]) == (ping[0], ping[2]) == (200, "ok")
    assert (mode[0], mode[2]) == (200, "nftables")
    assert mode[1]["Content-Type"] == "text/plain; charset=utf-8"
    assert config[1]["Content-Type"] == "application/json"
    assert config[2] == '{"kubeproxy.config.k8s.io":{}}'


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("verbose", "[+]ping ok\nhealthz check passed\n"),
        ("verbose=0&exclude=ping", "[+]ping excluded: ok\nhealthz check passed\n"),
        ("verbose&exclude=x", f"[+]ping ok\n{CANNOT_EXCLUDE}healthz check passed\n"),
        ("exclude=ping", "ok"),
    ],
)
async def test_healthz_lists_its_checks_when_asked_to_as_kube_proxy_does(query: str, body: str) -> None:
    ((status, _, text),) = await asked(
        build_metrics_routes(Metrics("iptables"), pages()), f"/healthz?{query}"
    )
    assert (status, text) == (200, body)


async def test_what_a_node_is_like_is_not_told_under_a_name_that_leads_here() -> None:
    routes = build_metrics_routes(Metrics("nftables"), pages(profiling=True))
    told = ["/configz", "/flagz", "/statusz", "/debug/pprof/goroutine"]
    for name, status in (("evil.example", 403), ("evil.example:10249", 403), ("localhost", 200)):
        assert {answer[0] for answer in await asked(routes, *told, host=name)} == {status}
    assert (await asked(routes, "/metrics", "/healthz", host="node.example"))[0][0] == 200


async def test_metrics_and_slis_are_prometheus_text() -> None:
    answers = await asked(
        build_metrics_routes(Metrics("iptables"), pages()),
        "/healthz",
        "/healthz/ping",
        "/metrics",
        "/metrics/slis",
    )
    for _, headers, _ in answers[2:]:
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "kubeproxy_sync_proxy_rules_service_changes_total 0.0" in answers[2][2]
    assert 'kubernetes_healthcheck{name="ping",type="healthz"} 1.0' in answers[3][2]
    assert 'kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1.0' in answers[3][2]


async def test_unknown_paths_and_profiling_are_404_by_default() -> None:
    routes = build_metrics_routes(Metrics("iptables"), pages())
    paths = ["/", "/readyz", "/livez", "/debug/pprof/", "/debug/flags/v", "/debug/pprof/profile"]
    assert {status for status, _, _ in await asked(routes, *paths)} == {404}


async def test_statusz_lists_the_served_paths_and_flagz_the_flags() -> None:
    status, flags = await asked(build_metrics_routes(Metrics("iptables"), pages()), "/statusz", "/flagz")
    assert "Binary version: v1.2.3" in status[2]
    assert "/configz" in status[2]
    assert "/metrics/slis" in status[2]
    assert "/debug" not in status[2]
    assert "proxy-mode=nftables\nv=2\n" in flags[2]


async def test_pages_switched_off_by_their_gates_are_404_and_not_listed() -> None:
    gates = FeatureGates({"ComponentFlagz": False, "ComponentStatusz": True})
    flagz, statusz = await asked(
        build_metrics_routes(Metrics("iptables"), pages(gates=gates)), "/flagz", "/statusz"
    )
    assert (flagz[0], statusz[0]) == (404, 200)
    assert "/flagz" not in statusz[2]
    gates = FeatureGates({"ComponentStatusz": False})
    flagz, statusz = await asked(
        build_metrics_routes(Metrics("iptables"), pages(gates=gates)), "/flagz", "/statusz"
    )
    assert (flagz[0], statusz[0]) == (200, 404)


def test_uptime_and_start_come_from_their_clocks() -> None:
    ticks = [0, 3_723 * SECOND]
    page = make_statusz("v1", ["/x"], wall=lambda: 0, monotonic=lambda: ticks.pop(0))
    text = page()
    assert "Started: Thu Jan  1 00:00:00 UTC 1970" in text
    assert "Up: 1 hr 02 min 03 sec" in text
    assert format_uptime(0) == "0 hr 00 min 00 sec"
    assert format_flagz({}).startswith("\nkube-proxy flagz\n")


async def test_extra_routes_are_served() -> None:
    async def home(_request: Request) -> Response:
        return text_response("home")

    assert (await asked(build_metrics_routes(Metrics("ipvs"), pages(extra={"/": home})), "/"))[0][2] == "home"


async def test_debug_pages_when_profiling_is_switched_on() -> None:
    routes = build_metrics_routes(Metrics("nftables"), pages(profiling=True))
    index, stacks, profile = await asked(
        routes, "/debug/pprof/", "/debug/pprof/goroutine", "/debug/pprof/profile"
    )
    assert "/debug/pprof/goroutine" in index[2]
    assert "thread MainThread" in stacks[2]
    assert "format_stacks" in stacks[2]
    assert profile[0] == 404


async def test_verbosity_is_set_by_put_and_bad_values_are_refused() -> None:
    levels: list[int] = []
    routes = build_metrics_routes(Metrics("nftables"), pages(profiling=True, set_verbosity=levels.append))
    assert (await asked(routes, "/debug/flags/v", method="PUT", data=b"4"))[0][0] == 200
    assert (await asked(routes, "/debug/flags/v", method="PUT", data=b"loud"))[0][0] == 400
    assert (await asked(routes, "/debug/flags/v"))[0][0] == 406
    assert levels == [4]


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "[::1]:0", "[::]:0"])
async def test_stacks_are_served_on_loopback_of_either_family(bind: str) -> None:
    routes = build_metrics_routes(Metrics("nftables"), pages(profiling=True))
    host_free = "127.0.0.1" if bind == "[::]:0" else None
    listener = Listener("test", route(routes))
    await listener.start(bind)
    host, port = listener.addresses[0]
    host = host_free or (f"[{host}]" if ":" in host else host)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}/debug/pprof/goroutine") as answer,
    ):
        status = answer.status
    await listener.stop()
    assert status == 200
