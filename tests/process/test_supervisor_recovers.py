"""A bug that ends a proxy does not end the process: another proxy takes its place."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fake import toy_mode
from tests.process.assembled import until

from pointsman.app.assembly import Running, assembled
from pointsman.app.host_preparation import Host
from pointsman.app.modes import Choice
from pointsman.app.reload_record import ReloadRecord
from pointsman.app.supervisor import Assembled, Supervisor
from pointsman.backends.contract import Mode
from pointsman.config.command_line import RunOptions, parse_run
from pointsman.config.mode_table import MODES
from pointsman.config.reload import Live
from pointsman.node.aftercare import Tidied
from pointsman.node.degraded import DegradedChecks


class UntouchedHost(Host):
    """The machine of the tests stays as it is."""

    def prepare(self, choice: Choice, degraded: DegradedChecks) -> None:
        """No setting is made."""

    def remove_leftovers(self, mode: Mode) -> Tidied:
        return Tidied.NOTHING


class Faulty:
    """A proxy that ends through a bug as soon as it runs."""

    async def run(self) -> None:
        raise ZeroDivisionError("a bug")

    def apply(self, live: Live) -> None:
        raise AssertionError("it does not stand long enough")

    def leave(self) -> None:
        raise AssertionError("it does not stand long enough")


class Assembler:
    """Assembles real proxies that leave the machine alone; the first few are faulty."""

    def __init__(self, *, faulty: int = 0) -> None:
        self.made: list[Running] = []
        self.standing = 0
        self._faulty = faulty

    @contextlib.asynccontextmanager
    async def __call__(self, options: RunOptions, reloads: ReloadRecord) -> AsyncIterator[Assembled]:
        async with assembled(options, reloads, UntouchedHost(options.state_dir)) as running:
            self.made.append(running)
            self.standing += 1
            try:
                yield Faulty() if len(self.made) <= self._faulty else running
            finally:
                self.standing -= 1

    @property
    def serving(self) -> bool:
        return self.standing == 1 and self.made[-1].proxy.gate.is_open


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For a proxy without a kernel."""
    monkeypatch.setitem(MODES, toy_mode.TOY, toy_mode.ROW)
    monkeypatch.setenv(toy_mode.KERNEL, str(tmp_path))
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


def _read(arguments: list[str]) -> RunOptions:
    return parse_run(arguments, program="pointsman")


def _supervisor(arguments: list[str], assembler: Assembler, *, first_pause: float = 0.01) -> Supervisor:
    return Supervisor(_read(arguments), lambda: _read(arguments), assemble=assembler, first_pause=first_pause)


async def test_a_bug_in_a_running_proxy_leads_to_a_new_one(arguments: list[str]) -> None:
    assembler = Assembler(faulty=2)
    made = _supervisor(arguments, assembler)
    running = asyncio.create_task(made.run())
    await until(lambda: len(assembler.made) == 3 and assembler.serving)
    made.stop()
    assert await running == 0


async def test_a_stop_does_not_wait_for_the_next_attempt(arguments: list[str]) -> None:
    assembler = Assembler(faulty=1)
    made = _supervisor(arguments, assembler, first_pause=600.0)
    running = asyncio.create_task(made.run())
    await until(lambda: len(assembler.made) == 1 and assembler.standing == 0)
    made.stop()
    async with asyncio.timeout(5):
        assert await running == 0


async def test_a_bug_met_in_a_reload_does_not_make_the_proxy_deaf_to_the_next_one(
    arguments: list[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: toy\n"
    config.write_text(text)
    flags = [f"--config={config}", *arguments]
    failed: list[int] = []

    def read_again() -> RunOptions:
        if "bug" in config.read_text() and not failed:
            failed.append(1)
            raise ZeroDivisionError("a bug")
        return _read(flags)

    assembler = Assembler()
    made = Supervisor(_read(flags), read_again, assemble=assembler)
    running = asyncio.create_task(made.run())
    await until(lambda: bool(assembler.made) and assembler.serving)
    config.write_text(f"{text}# bug\n")
    await until(lambda: bool(failed))
    config.write_text(f"{text}nftables: {{masqueradeAll: true}}\n")
    await until(lambda: made.reloads.count == 1)
    assert assembler.made[-1].proxy.config.masquerade_all
    made.stop()
    assert await running == 0
    assert len(assembler.made) == 1
