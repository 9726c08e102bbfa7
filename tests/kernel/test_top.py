"""`pointsman top` and `list` beside a real proxy with real connections, all in one namespace."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.waiting import TIME_FACTOR, wait_until
from tests.kernel.nft_kernel import wired_namespace
from tests.process.terminal import POINTSMAN, ROOT, Terminal, terminal

from pointsman.cli.main import main
from pointsman.lab.netns import Namespace

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "shop"
ENDPOINTS = ("10.244.1.20", "10.244.2.20")
FRONTEND = ("10.96.0.20", 80)
HELD = 12
MODES = {
    "counted": ("--mode=nftables", "--service-metrics"),
    "iptables": ("--mode=iptables",),
}

HOME, ENTERED, LEFT = "\x1b[H", "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and netfilter"),
]


class Busy:
    """shop/web of the examples with servers behind it, some connections held open and new ones all the time."""

    def __init__(self, namespace: Namespace, socket_path: Path) -> None:
        self.namespace = namespace
        self.live = ("--control-socket", str(socket_path))
        self._servers: list[socket.socket] = []
        self._held: list[socket.socket] = []
        self._ended = threading.Event()
        self._client = threading.Thread(target=self._connect_on)

    def start(self) -> None:
        with self.namespace.entered():
            self._servers = [socket.create_server((address, 8080), backlog=4096) for address in ENDPOINTS]
            self._held = [socket.create_connection(FRONTEND, timeout=5) for _ in range(HELD)]
        self._client.start()

    def _connect_on(self) -> None:
        with self.namespace.entered():
            while not self._ended.is_set():
                socket.create_connection(FRONTEND, timeout=5).close()
                time.sleep(0.05)

    def stop(self) -> None:
        self._ended.set()
        if self._client.ident is not None:
            self._client.join()
        for each in (*self._held, *self._servers):
            each.close()

    def json(self, *arguments: str) -> Any:
        with self.namespace.entered():
            done = subprocess.run(
                [*POINTSMAN, *arguments, "-o", "json", *self.live],
                capture_output=True,
                text=True,
                timeout=60 * TIME_FACTOR,
            )
        assert done.returncode == 0, done
        return json.loads(done.stdout)


@contextlib.contextmanager
def _proxy(namespace: Namespace, directory: Path, *flags: str) -> Iterator[Path]:
    control = directory / "state" / "control.sock"
    command = (
        *(sys.executable, "-m", "pointsman", "run", f"--manifests={EXAMPLES}", "--hostname-override=node-a"),
        *(f"--state-dir={control.parent}", "--conntrack-max-per-core=0", "--cluster-cidr=10.244.0.0/16"),
        *flags,
    )
    with namespace.entered(), (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        verify = ["verify", "--control-socket", str(control)]
        wait_until(lambda: main(verify) == 0, details=(directory / "log").read_text)
        yield control
    finally:
        process.terminate()
        process.wait(20 * TIME_FACTOR)


@pytest.fixture(scope="module", params=list(MODES))
def busy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Busy]]:
    namespace = wired_namespace(
        *(f"address add {address}/32 dev lo" for address in ENDPOINTS),
        "route add 10.96.0.0/16 dev eth0",
    )
    directory = tmp_path_factory.mktemp("top")
    with contextlib.closing(namespace), _proxy(namespace, directory, *MODES[request.param]) as control:
        made = Busy(namespace, control)
        try:
            made.start()
            yield request.param, made
        finally:
            made.stop()


def test_figures_are_those_of_the_connections_there_are(busy: tuple[str, Busy]) -> None:
    kind, node = busy
    report = node.json("top", "--once", "-d", "1", "web", "admin")
    assert [port["service"] for port in report["ports"]] == ["shop/web", "shop/admin"]
    web, admin = (port["traffic"] for port in report["ports"])
    endpoints = {endpoint["address"]: endpoint["traffic"] for endpoint in report["ports"][0]["endpoints"]}
    assert web["open"] - HELD in (0, 1), "the client that connects all the time has one connection at a time"
    assert web["open"] == sum(endpoint["open"] for endpoint in endpoints.values())
    assert web["connectionsPerSecond"] > 1
    assert web["counted"] is (kind == "counted")
    assert admin["connectionsPerSecond"] == admin["open"] == 0
    assert set(endpoints) == {f"{one}:8080" for one in ENDPOINTS}
    assert sum(endpoint["share"] for endpoint in endpoints.values()) == pytest.approx(1)
    assert all(endpoint["connectionsPerSecond"] > 0 for endpoint in endpoints.values())
    assert any("counts no connections" in note for note in report["notes"]) is (kind != "counted")


def test_all_services_give_the_same_flows_as_one(busy: tuple[str, Busy]) -> None:
    _, node = busy
    (web, *_) = node.json("top", "--once", "-d", "0.5")["ports"]
    assert web["service"] == "shop/web"
    assert web["traffic"]["open"] - HELD in (0, 1)


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_keys_drive_it_on_a_terminal(busy: tuple[str, Busy], columns: int) -> None:
    _, node = busy
    with node.namespace.entered(), terminal("top", "-d", "0.3", *node.live, columns=columns) as shown:
        text = shown.read(lambda text: text.count("node-a, ") >= 3)
        assert text.startswith(ENTERED)
        lines = [line for frame in text.split(HOME) for line in ESCAPES.sub("", frame).splitlines()]
        assert max(map(len, lines)) <= columns
        assert any(line.startswith("  10.244.1.20:8080 ") for line in lines), "endpoints are indented"
        assert ("NODE" in lines[1], "OPEN" in lines[1]) == (columns >= 100, True)
        _press(shown, b"/cart\r", "filter 'cart'")
        _press(shown, b"s", "by open")
        _press(shown, b"\r", "shop/cart:http TCP 80 (IPv4): down")
        _press(shown, b"\x1b", "filter 'cart'")
        _press(shown, b"\x1b", "by open\n")
        _press(shown, b"?", "select a line")
        _press(shown, b"q", "by open\n")
        shown.resize(40)
        shown.read(lambda text: len(ESCAPES.sub("", text.rpartition(HOME)[2]).split("\n", 1)[0]) == 40)
        shown.press(b"q")
        assert shown.read().endswith(LEFT)
        assert shown.process.wait(10) == 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_restores_the_terminal(busy: tuple[str, Busy], number: signal.Signals, status: int) -> None:
    _, node = busy
    with node.namespace.entered(), terminal("top", "-d", "0.3", *node.live) as shown:
        before = shown.settings
        shown.read(lambda text: "node-a, " in text)
        assert shown.settings != before
        shown.process.send_signal(number)
        assert shown.read().endswith(LEFT)
        assert shown.process.wait(10) == status
        assert shown.settings == before


def test_a_proxy_that_goes_away_is_shown_and_waited_for(busy: tuple[str, Busy]) -> None:
    _, node = busy
    control = Path(node.live[1])
    with node.namespace.entered(), terminal("top", "-d", "0.2", *node.live) as shown:
        shown.read(lambda text: "node-a, " in text)
        control.rename(control.with_suffix(".away"))
        try:
            _press(shown, b"", "no proxy runs here")
        finally:
            control.with_suffix(".away").rename(control)
        _press(shown, b"", "q quit, ? keys")


def _press(shown: Terminal, keys: bytes, expected: str) -> None:
    """Press keys and wait for a frame with this text."""
    before = len(shown.shown)
    shown.press(keys)
    shown.read(
        lambda text: any(expected in ESCAPES.sub("", frame) for frame in text[before:].split(HOME)[1:])
    )


def test_the_list_agrees_with_what_connections_meet(busy: tuple[str, Busy]) -> None:
    _, node = busy
    states = {row["service"]: row["state"] for row in node.json("list", "web", "cart")["ports"]}
    assert states == {"shop/web": "healthy", "shop/cart": "down"}
    with node.namespace.entered(), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("10.96.0.22", 80), timeout=5)
