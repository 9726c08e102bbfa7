"""The HTTP servers of a running proxy: health port, metrics port with the status page, and the control socket."""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from pointsman import KUBERNETES_MINOR, __version__
from pointsman.app.control_handlers import control_routes, page_data_routes
from pointsman.app.taken_ports import TakenPorts
from pointsman.config.gates import effective_gates, gate_states
from pointsman.config.load import config_to_json
from pointsman.config.types import KubeProxyConfiguration
from pointsman.kube.event_recorder import Recorder
from pointsman.node.inspector import Inspector
from pointsman.node.proxy import Proxy
from pointsman.obs.log import recent_lines, set_verbosity
from pointsman.serve.connections import Connections
from pointsman.serve.control import ControlServer
from pointsman.serve.handlers import route
from pointsman.serve.health import HealthView
from pointsman.serve.listeners import BindFailed, Listener
from pointsman.serve.messages import Request, Response, text_response
from pointsman.serve.page import page_routes
from pointsman.serve.routes import Pages, description_routes, health_routes, metrics_routes

_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}
"""Go's names of processors, where the kernel has others; dashboards compare the label with those of other components."""


async def _log_lines(_request: Request) -> Response:
    return text_response("".join(recent_lines()))


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
        on_ports_freed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_ports_freed` is called when another process let go of ports that were wanted here."""
        config = proxy.config
        self._describe_build(proxy)
        pages = Pages(
            configuration=lambda: b'{"kubeproxy.config.k8s.io":%s}' % config_to_json(proxy.config),
            flags=lambda: flags,
            version=__version__,
            gates=effective_gates(config.feature_gates),
            profiling=config.enable_profiling,
            set_verbosity=set_verbosity,
            extra=page_routes(page_data_routes(inspector)),
        )

        taken = TakenPorts(on_ports_freed)
        proxy.board.add_source("ports", taken.conditions)
        view = HealthView(proxy.board, proxy.health.last_updated)

        def failed(server: str, reason: str) -> Callable[[BindFailed], Awaitable[None]]:
            async def tell(failure: BindFailed) -> None:
                recorder.node_event(reason, str(failure))
                elsewhere = "" if self._metrics.addresses else proxy.config.metrics_bind_address
                await taken.on_bind_failed(server, failure, elsewhere)

            return tell

        self._health = Listener(
            "health server",
            route(health_routes(view, proxy.metrics)),
            hard_fail=config.bind_address_hard_fail,
            on_bind_failure=failed("health server", "FailedToStartProxierHealthcheck"),
            on_settled=partial(taken.on_bound, "health server"),
            connections=connections,
        )
        self._metrics = Listener(
            "metrics server",
            route(metrics_routes(proxy.metrics, pages)),
            hard_fail=config.bind_address_hard_fail,
            on_bind_failure=failed("metrics server", "FailedToStartMetricServer"),
            on_settled=partial(taken.on_bound, "metrics server"),
            connections=connections,
        )

        self._control: ControlServer | None = None
        if control_socket is not None:
            routes = {
                **control_routes(inspector),
                **description_routes(proxy.metrics, pages),
                "/log": _log_lines,
            }
            self._control = ControlServer(control_socket, routes, connections)

    async def start(self, config: KubeProxyConfiguration) -> None:
        await self._health.start(config.healthz_bind_address)
        await self._metrics.start(config.metrics_bind_address)
        if self._control is not None:
            await self._control.start()

    async def rebind(self, config: KubeProxyConfiguration) -> None:
        """Listen where this configuration says.

        Raises BindFailed, with both ports where they were, when it says bindAddressHardFail and one cannot be opened.
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
            lambda: gate_states(effective_gates(proxy.config.feature_gates)),
        )
