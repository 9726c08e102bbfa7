"""A bug that ends a proxy does not end the process: another proxy takes its place."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.fake import toy_mode
from tests.process.assembled import until

from pointsman.app import modes, supervisor
from pointsman.app.supervisor import Supervisor
from pointsman.config.command_line import RunOptions, parse_run
from pointsman.config.mode_table import MODES
from pointsman.node.proxy import Proxy


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For a proxy that touches neither kernel nor host."""
    monkeypatch.setitem(MODES, toy_mode.TOY, toy_mode.ROW)
    monkeypatch.setenv(toy_mode.KERNEL, str(tmp_path))
    monkeypatch.setattr(modes, "remove_leftovers", lambda *_: [])
    monkeypatch.setattr(Supervisor, "_prepare_host", lambda *_: None)
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.01)
    (tmp_path / "manifests").mkdir()
    return [
        f"--manifests={tmp_path / 'manifests'}",
        f"--state-dir={tmp_path / 'state'}",
        *("--control-socket=", f"--proxy-mode={toy_mode.TOY}"),
        f"--healthz-bind-address=127.0.0.1:{_free_port()}",
        f"--metrics-bind-address=127.0.0.1:{_free_port()}",
    ]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_bug_in_a_running_proxy_leads_to_a_new_one(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Proxy] = []
    run = Proxy.run

    async def failing(self: Proxy) -> None:
        runs.append(self)
        if len(runs) < 3:
            raise ZeroDivisionError("a bug")
        await run(self)

    monkeypatch.setattr(Proxy, "run", failing)

    async def scenario() -> int:
        made = Supervisor(arguments, parse_run(arguments, program="pointsman"))
        running = asyncio.create_task(made.run())
        await until(lambda: len(runs) == 3 and made.proxy is not None and made.proxy.gate.is_open)
        made._stop.set()
        return await running

    assert asyncio.run(scenario()) == 0
    assert len(set(map(id, runs))) == 3


def test_a_stop_does_not_wait_for_the_next_attempt(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 600.0)
    failed = []

    async def failing(self: Proxy) -> None:
        failed.append(self)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Proxy, "run", failing)

    async def scenario() -> int:
        made = Supervisor(arguments, parse_run(arguments, program="pointsman"))
        running = asyncio.create_task(made.run())
        await until(lambda: bool(failed) and made.proxy is None)
        made._stop.set()
        async with asyncio.timeout(5):
            return await running

    assert asyncio.run(scenario()) == 0


def test_a_bug_met_in_a_reload_does_not_make_the_proxy_deaf_to_the_next_one(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: toy\n"
    config.write_text(text)
    failed: list[int] = []

    def failing(*given: Any, **options: Any) -> RunOptions:
        if "bug" in config.read_text() and not failed:
            failed.append(1)
            raise ZeroDivisionError("a bug")
        return parse_run(*given, **options)

    async def scenario() -> int:
        flags = [f"--config={config}", *arguments]
        made = Supervisor(flags, parse_run(flags, program="pointsman"))
        running = asyncio.create_task(made.run())
        await until(lambda: made.proxy is not None and made.proxy.gate.is_open)
        monkeypatch.setattr(supervisor, "parse_run", failing)
        config.write_text(f"{text}# bug\n")
        await until(lambda: bool(failed))
        config.write_text(f"{text}nftables: {{masqueradeAll: true}}\n")
        await until(lambda: made.reload.count == 1)
        made._stop.set()
        return await running

    assert asyncio.run(scenario()) == 0
