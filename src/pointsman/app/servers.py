"""The HTTP servers of a running proxy: health port, metrics port with the status page, and the control socket."""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pointsman import KUBERNETES_MINOR, __version__
from pointsman.app.control_handlers import build_control_routes, build_page_data_routes
from pointsman.conditions import Blocks, Condition, ConditionBoard
from pointsman.config.gates import FeatureGates, compute_gate_states
from pointsman.config.load import config_to_json
from pointsman.config.mode_table import MODES
from pointsman.config.options import SecureServing
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import ConfigError
from pointsman.kube.client import ApiClient
from pointsman.kube.event_recorder import Recorder
from pointsman.node.inspector import Inspector
from pointsman.node.proxy import Proxy
from pointsman.obs.log import list_recent_lines, set_verbosity
from pointsman.serve.connections import Connections
from pointsman.serve.control import ControlServer
from pointsman.serve.health import HealthView
from pointsman.serve.listeners import BindFailed, Listener, parse_bind_address
from pointsman.serve.messages import Handler, Request, Response, route, text_response
from pointsman.serve.page import build_page_routes
from pointsman.serve.routes import Pages, build_description_routes, build_health_routes, build_metrics_routes

if TYPE_CHECKING:
    from pointsman.serve.authorization import Authorizer
    from pointsman.serve.tls import ServerTls

_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}
"""Go's names of processors, where the kernel has others; dashboards compare the label with those of other components."""
_ANSWER_TIMEOUT_SECONDS = 2.0
_ON_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  where a wildcard can be reached


async def _log_lines(_request: Request) -> Response:
    return text_response("".join(list_recent_lines()))


class Security(NamedTuple):
    """What protects the ports, if anything does."""

    metrics: ServerTls | None = None
    health: ServerTls | None = None
    authorizer: Authorizer | None = None


async def build_security(
    options: SecureServing, client: ApiClient | None, node_name: str, board: ConditionBoard
) -> Security:
    """Return what protects the ports; `client` sends the reviews of clients of the metrics port.

    What only this needs is imported here; imports and keys have a callback of the event loop of their own.
    """
    if not (options.metrics or options.health):
        return Security()
    await asyncio.sleep(0)
    from pointsman.kube.reviews import ApiReviews
    from pointsman.serve.authorization import Authorizer
    from pointsman.serve.tls import ServerTls

    health = metrics = authorizer = None
    if options.health:
        health = ServerTls(options.certificate, options.key, None, node_name)
        board.add_source("certificate of the health port", health.conditions)
    if options.metrics:
        if client is None:
            raise ConfigError(["--secure-metrics: needs an API server, which --manifests replaces"])
        metrics = ServerTls(options.certificate, options.key, options.client_ca, node_name)
        board.add_source("certificate of the metrics port", metrics.conditions)
        reviews = ApiReviews(client, options.audiences)
        authorizer = Authorizer(reviews, exempts_loopback=options.metrics == "remote")
        board.add_source("clients of the metrics port", authorizer.conditions)
    await asyncio.sleep(0)
    return Security(metrics, health, authorizer)


class Servers:
    """Everything that listens for one proxy; the ports follow the configuration."""

    def __init__(
        self,
        proxy: Proxy,
        recorder: Recorder,
        flags: Mapping[str, str],
        inspector: Inspector,
        control_socket: Path | None,
        connections: Connections,
        security: Security,
        on_ports_freed: Callable[[], None],
    ) -> None:
        """`on_ports_freed` is called when another process has released ports that are configured here."""
        config = proxy.config
        self._describe_build(proxy)
        pages = Pages(
            configuration=lambda: b'{"kubeproxy.config.k8s.io":%s}' % config_to_json(proxy.config),
            flags=lambda: flags,
            version=__version__,
            gates=FeatureGates(config.feature_gates),
            profiling=config.enable_profiling,
            set_verbosity=set_verbosity,
            extra=build_page_routes(build_page_data_routes(inspector)),
        )

        taken = TakenPorts(on_ports_freed)
        proxy.board.add_source("ports", taken.conditions)
        view = HealthView(proxy.board, proxy.health.last_updated)

        def build_listener(
            name: str, reason: str, routes: Mapping[str, Handler], tls: ServerTls | None
        ) -> Listener:
            async def on_bind_failed(failure: BindFailed) -> None:
                recorder.node_event(reason, str(failure))
                elsewhere = "" if self._metrics.addresses else proxy.config.metrics_bind_address
                await taken.on_bind_failed(name, failure, elsewhere)

            return Listener(
                name,
                route(routes),
                hard_fail=config.bind_address_hard_fail,
                on_bind_failure=on_bind_failed,
                on_settled=partial(taken.on_bound, name),
                connections=connections,
                tls=tls,
            )

        health_routes = build_health_routes(view, proxy.metrics)
        metrics_routes = build_metrics_routes(proxy.metrics, pages)
        if security.authorizer is not None:
            metrics_routes = security.authorizer.guard(metrics_routes)
        self._health = build_listener(
            "health server", "FailedToStartProxierHealthcheck", health_routes, security.health
        )
        self._metrics = build_listener(
            "metrics server", "FailedToStartMetricServer", metrics_routes, security.metrics
        )
        self._control: ControlServer | None = None
        if control_socket is not None:
            routes = {
                **build_control_routes(inspector),
                **build_description_routes(proxy.metrics, pages),
                "/log": _log_lines,
            }
            self._control = ControlServer(control_socket, routes, connections)

    async def start(self, config: KubeProxyConfiguration) -> None:
        await self._health.start(config.healthz_bind_address)
        await self._metrics.start(config.metrics_bind_address)
        if self._control is not None:
            await self._control.start()

    async def rebind(self, config: KubeProxyConfiguration) -> None:
        """Listen at the addresses of this configuration.

        Raises BindFailed, with both ports where they were, when bindAddressHardFail is set and one cannot be opened.
        """
        previous = self._health.address, self._health.hard_fail
        self._health.hard_fail = self._metrics.hard_fail = config.bind_address_hard_fail
        try:
            await self._health.rebind(config.healthz_bind_address)
            await self._metrics.rebind(config.metrics_bind_address)
        except BindFailed:
            address, self._health.hard_fail = previous
            self._metrics.hard_fail = self._health.hard_fail
            await self._health.rebind(address)
            raise

    async def stop(self) -> None:
        await self._health.stop()
        await self._metrics.stop()
        if self._control is not None:
            await self._control.stop()

    def _describe_build(self, proxy: Proxy) -> None:
        proxy.metrics.process.build_info.labels(
            major="1",
            minor=str(KUBERNETES_MINOR),
            git_version=f"v{__version__}",
            git_commit="",
            git_tree_state="",
            build_date="",
            go_version="",
            compiler=platform.python_implementation(),
            platform=f"{platform.system().lower()}/{_GO_NAMES.get(platform.machine(), platform.machine())}",
        ).set(1)
        proxy.metrics.add_scraped_gauge(
            "kubernetes_feature_enabled",
            "[BETA] 1 where a feature gate is on",
            ("name", "stage"),
            lambda: compute_gate_states(FeatureGates(proxy.config.feature_gates)),
        )


class TakenPorts:
    """The ports of this proxy's servers that are in use by another process.

    The usual cause is kube-proxy, still running where this proxy was started. It is recognised by its answer at the metrics
    port: a pod cannot see the processes of other pods.
    """

    def __init__(self, on_freed: Callable[[], None]) -> None:
        """`on_freed` is called when the last of them could be opened later: the other process may have left rules."""
        self._on_freed = on_freed
        self._failures: dict[str, BindFailed] = {}
        self._other_mode = ""
        """The mode of the proxy that holds the ports, where it is one."""

    async def on_bind_failed(self, server: str, failure: BindFailed, metrics_address: str) -> None:
        """Note that a server cannot listen; another proxy would answer at `metrics_address`, empty when we listen there."""
        self._failures[server] = failure
        self._other_mode = await find_proxy_mode(metrics_address) if metrics_address else ""

    def on_bound(self, server: str, listens: bool) -> None:
        """Note that a server listens now, or is no longer configured."""
        self._failures.pop(server, None)
        if not self._failures and listens:
            self._on_freed()

    def conditions(self) -> Iterator[Condition]:
        if not self._failures:
            yield Condition.true("Listening", Blocks.READINESS)
        elif self._other_mode:
            addresses = " and ".join(failure.address for failure in self._failures.values())
            yield Condition.false(
                "Listening",
                "OtherProxyRunning",
                f"another proxy in {self._other_mode} mode serves this node and holds {addresses}",
                blocks=Blocks.READINESS,
            )
        else:
            failures = "; ".join(f"{server}: {failure}" for server, failure in self._failures.items())
            yield Condition.false("Listening", "BindFailed", failures, blocks=Blocks.READINESS)


async def find_proxy_mode(address: str) -> str:
    """Return the mode of the proxy whose metrics port this is; empty when none answers there."""
    host, port = parse_bind_address(address)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(_ON_LOOPBACK.get(host, host), port)
            try:
                writer.write(b"GET /proxyMode HTTP/1.0\r\nHost: localhost\r\n\r\n")
                answer = await reader.read()
            finally:
                writer.close()
        body = answer.decode("ascii", "replace").partition("\r\n\r\n")[2].strip()
        return body if body in MODES else ""
    return ""
