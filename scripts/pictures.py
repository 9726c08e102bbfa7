"""Draws the pictures of docs/: the status page in Chromium, and commands in colour.

    .venv/bin/python -m scripts.pictures docs/pictures

Page, `top` and `explain` are those of a proxy with a scripted kernel and scripted traffic; `trace` follows a real packet in a lab, which
needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.ansi_svg import render_svg
from tests import factory
from tests.harness.waiting import wait_until
from tests.harness.world import running
from tests.process.chromium import Browser, running_chromium
from tests.unit.cli.live_proxy import LiveProxy, live_proxy

from pointsman.backends import mode_named
from pointsman.cli.control_client import ask
from pointsman.conditions import Condition
from pointsman.lab.objects import LabService, backends
from pointsman.model.objects import KubeObject
from pointsman.report.service_list import ListQuery, ServiceList
from pointsman.report.traffic import Directory, build_traffic_report, render_traffic
from pointsman.screen import Screen

NODE = "node-a"
SERVICES = {
    "shop/web": (11, "http", 80, 4),
    "shop/api": (12, "grpc", 9000, 3),
    "shop/cart": (13, "http", 8080, 3),
    "shop/search": (14, "http", 9200, 2),
    "shop/cache": (15, "redis", 6379, 1),
    "shop/payments": (16, "https", 8443, 2),
    "shop/edge": (17, "https", 443, 2),
    "monitoring/prometheus": (18, "web", 9090, 1),
    "monitoring/grafana": (19, "http", 3000, 1),
    "kube-system/kube-dns": (20, "dns-tcp", 53, 2),
}
"""Last part of the cluster IP, port and endpoints of each Service."""
BUSY = {
    "shop/web": 42,
    "shop/api": 17,
    "shop/cart": 6,
    "shop/search": 9,
    "kube-system/kube-dns": 3,
    "shop/cache": 1.5,
}
"""Connections per second."""
SAMPLES = 45
OPENED = ("shop/payments",)
WINDOWS = (("page-light", 1280, 900, False), ("page-dark", 1280, 900, True), ("page-phone", 390, 844, False))
SCREEN = Screen(width=110)


def _slice(service: str, *endpoints: int, ready: bool = True) -> KubeObject:
    namespace, name = service.split("/")
    number, port_name, port, _ = SERVICES[service]
    found = [
        {
            "addresses": [f"10.244.{1 + one % 3}.{number}{one}"],
            "nodeName": f"node-{'abc'[one % 3]}",
            "zone": f"zone-{1 + one % 3}",
            "conditions": {"ready": ready},
            "targetRef": {"kind": "Pod", "name": f"{name}-7d9c5b{one}f8-x{number}{one}"},
        }
        for one in endpoints
    ]
    return factory.endpoint_slice(
        *found,
        name=f"{name}-a",
        service_name=name,
        namespace=namespace,
        ports=[{"name": port_name, "port": port}],
    )


def _objects() -> Iterator[KubeObject]:
    yield factory.node(NODE, zone="zone-1", addresses=[{"type": "InternalIP", "address": "192.168.10.11"}])
    for service, (number, port_name, port, endpoints) in SERVICES.items():
        namespace, name = service.split("/")
        spec: dict[str, Any] = {
            "clusterIP": f"10.96.0.{number}",
            "ports": [{"name": port_name, "port": port}],
        }
        if name == "edge":
            spec |= {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
            spec["ports"] = [{"name": port_name, "port": port, "nodePort": 30443}]
            spec["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.80"}]}}
        yield factory.service(name, namespace, **spec)
        yield _slice(service, *([1, 4] if name == "edge" else range(endpoints)))


def _serve_traffic(proxy: LiveProxy) -> None:
    """Let connections be made with changing rates."""
    chance = random.Random(7)
    made: dict[tuple[str, str], float] = {}
    last = [time.monotonic()]

    def grow() -> None:
        now = time.monotonic()
        seconds, last[0] = now - last[0], now
        for service, rate in BUSY.items():
            number, _, port, endpoints = SERVICES[service]
            wave = 0.7 + 0.3 * chance.random() + (0.5 if chance.random() > 0.93 else 0)
            for one in range(endpoints):
                key = (service, f"10.244.{1 + one % 3}.{number}{one}:{port}")
                made[key] = made.get(key, 0.0) + rate * wave * (1 + one / 5) / endpoints * seconds
                proxy.traffic.connections[key] = round(made[key])
                proxy.traffic.open[key] = round(rate * wave / 2) + one

    proxy.traffic.before_reading = grow


def _break_things(proxy: LiveProxy) -> None:
    proxy.put(_slice("shop/web", 0, 1, 2, 5))
    proxy.put(
        factory.service(
            "web",
            "shop",
            clusterIP="10.96.0.11",
            sessionAffinity="ClientIP",
            ports=[{"name": "http", "port": 80}],
        )
    )
    proxy.put(_slice("shop/payments", 0))
    proxy.put(_slice("shop/payments", 0, ready=False))
    proxy.put(_slice("shop/search", 0, 1, 2))
    proxy.raise_conditions(
        Condition.false(
            "OOMScore",
            "NotPermitted",
            "cannot set oom_score_adj to -999",
            "give the container CAP_SYS_RESOURCE",
        )
    )


def _draw_page(proxy: LiveProxy, directory: Path, scratch: Path) -> None:
    with running_chromium(scratch / "profile") as browser:
        _open_page(browser, proxy, width=1280, height=900, dark=False)
        wait_until(lambda: proxy.traffic.readings > SAMPLES, seconds=60)
        for name, width, height, dark in WINDOWS:
            _open_page(browser, proxy, width=width, height=height, dark=dark)
            browser.evaluate("document.querySelector('th.state button').click()")
            browser.wait_for("document.querySelector('tr.service').dataset.service === 'shop/payments'")
            for service in OPENED:
                browser.evaluate(f"document.querySelector('tr[data-service=\"{service}\"] button').click()")
            browser.wait_for(f"document.querySelectorAll('.detail').length === {len(OPENED)}")
            browser.screenshot(directory / f"{name}.png", whole=False)


def _open_page(browser: Browser, proxy: LiveProxy, *, width: int, height: int, dark: bool) -> None:
    browser.visit(proxy.page_address, width=width, height=height, dark=dark)
    browser.wait_for(
        "document.getElementById('refreshed')?.textContent && document.querySelector('td.traffic .spark') !== null"
    )


def _draw_top(proxy: LiveProxy, directory: Path) -> None:
    rows = ask(proxy.socket, "/list", ServiceList, ListQuery(namespace="shop", detailed=True)).ports
    places, mode = Directory(rows), mode_named("nftables")
    proxy.traffic.before_reading()
    before = proxy.traffic.read(places, mode.counting, 0)
    time.sleep(2)
    now = proxy.traffic.read(places, mode.counting, 0)
    report = build_traffic_report(places, before, now, node=NODE, mode=mode)
    (directory / "top.svg").write_text(
        render_svg(f"# pointsman top -n shop\n{render_traffic(report, SCREEN)}")
    )


def _draw_command(directory: Path, socket: Path, *arguments: str) -> None:
    """Run a command in a terminal of its own."""
    command = [sys.executable, "-m", "pointsman", *arguments, "--control-socket", str(socket)]
    environment = {**os.environ, "COLUMNS": str(SCREEN.width), "TERM": "xterm", "LANG": "C.UTF-8"}
    terminal = ["script", "-qec", shlex.join(command), "/dev/null"]
    done = subprocess.run(terminal, capture_output=True, text=True, check=False, env=environment)
    (directory / f"{arguments[0]}.svg").write_text(
        render_svg(f"# pointsman {' '.join(arguments)}\n{done.stdout}")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    directory.mkdir(exist_ok=True, parents=True)
    with tempfile.TemporaryDirectory() as name, live_proxy(Path(name), *_objects(), node_name=NODE) as proxy:
        _serve_traffic(proxy)
        _break_things(proxy)
        _draw_command(directory, proxy.socket, "explain", "shop/payments")
        _draw_top(proxy, directory)
        _draw_page(proxy, directory, Path(name))
    far = LabService("far", 1, backends("pod4"))
    with tempfile.TemporaryDirectory() as name, running(Path(name), "nftables", [far]) as world:
        socket = world.proxy.manifests.parent / "state" / "control.sock"
        with world.cluster["n1"].entered():
            _draw_command(directory, socket, "trace", "far")


if __name__ == "__main__":
    main()
