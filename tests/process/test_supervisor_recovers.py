"""A bug that ends a proxy does not end the process, and neither does a new configuration that cannot run here."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.fake import toy_mode
from tests.harness.waiting import async_wait_until

from pointsman.app import modes
from pointsman.app.assembly import Running, assemble
from pointsman.app.host_preparation import Host
from pointsman.app.modes import Choice
from pointsman.app.reload_record import ReloadRecord
from pointsman.app.supervisor import Assembled, Supervisor
from pointsman.backends.contract import Mode
from pointsman.conditions import Condition
from pointsman.config.command_line import parse_run
from pointsman.config.mode_table import MODES
from pointsman.config.options import RunOptions
from pointsman.config.reload import Live
from pointsman.errors import ConfigError, KernelError, NotSupported
from pointsman.node.cleanup import CleanupResult
from pointsman.node.proxy import Proxy


class UntouchedHost(Host):
    """The machine of the tests stays as it is."""

    def prepare(self, choice: Choice) -> tuple[Condition, ...]:
        return ()

    def remove_leftovers(self, mode: Mode, exclude_cidrs: Sequence[str]) -> CleanupResult:
        return CleanupResult.NOTHING


class Faulty:
    """A proxy that ends with an error as soon as it runs."""

    def __init__(self, error: Exception, *, started: bool = False) -> None:
        self.started = started
        self._error = error

    async def run(self) -> None:
        raise self._error

    async def apply(self, live: Live) -> None:
        raise AssertionError("it does not stand long enough")

    def drain(self) -> None:
        raise AssertionError("it does not stand long enough")

    async def report_stopped(self) -> None:
        """It has no Node."""


class Waiting:
    """A proxy whose objects never arrive."""

    started = False
    runs = False

    async def run(self) -> None:
        self.runs = True
        await asyncio.Event().wait()

    async def apply(self, live: Live) -> None:
        """Nothing follows from it."""

    def drain(self) -> None:
        """Nothing follows from it."""

    async def report_stopped(self) -> None:
        """It has no Node."""


class Refusing(Waiting):
    """A proxy that serves and takes over nothing."""

    started = True

    async def apply(self, live: Live) -> None:
        raise ConfigError(["no pod range"])


class Assembler:
    """Assembles real proxies that leave the machine alone; by their numbers, from 0, others stand in for some."""

    def __init__(self, others: Mapping[int, Assembled] | None = None) -> None:
        self.made: list[Running] = []
        self.standing = 0
        self._others = others or {}

    @contextlib.asynccontextmanager
    async def __call__(self, options: RunOptions, reloads: ReloadRecord) -> AsyncIterator[Assembled]:
        async with assemble(options, reloads, UntouchedHost(options.paths.state_dir)) as running:
            self.made.append(running)
            self.standing += 1
            try:
                yield self._others.get(len(self.made) - 1, running)
            finally:
                self.standing -= 1

    @property
    def serving(self) -> bool:
        return self.standing == 1 and self.made[-1].started


A_BUG = Faulty(ZeroDivisionError("a bug"))


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


class ConfigFile:
    """A configuration file that says little, and what a test adds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.write()

    @property
    def flag(self) -> str:
        return f"--config={self._path}"

    @property
    def text(self) -> str:
        return self._path.read_text()

    def write(self, more: str = "") -> None:
        self._path.write_text(
            f"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: toy\n{more}\n"
        )


@pytest.fixture
def config(tmp_path: Path) -> ConfigFile:
    return ConfigFile(tmp_path / "config.yaml")


@pytest.fixture
def flags(config: ConfigFile, arguments: list[str]) -> list[str]:
    """For a proxy with a configuration file."""
    return [config.flag, *arguments]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _read(arguments: list[str]) -> RunOptions:
    return parse_run(arguments, program="pointsman")


def _supervisor(
    arguments: list[str], assembler: Assembler, *, first_retry_seconds: float = 0.01
) -> Supervisor:
    return Supervisor(
        _read(arguments),
        lambda: _read(arguments),
        assemble=assembler,
        first_retry_seconds=first_retry_seconds,
    )


async def test_a_bug_in_a_running_proxy_leads_to_a_new_one(arguments: list[str]) -> None:
    assembler = Assembler({0: A_BUG, 1: A_BUG})
    made = _supervisor(arguments, assembler)
    running = asyncio.create_task(made.run())
    await async_wait_until(lambda: len(assembler.made) == 3 and assembler.serving)
    made.stop()
    assert await running == 0


async def test_a_stop_does_not_wait_for_the_next_attempt(arguments: list[str]) -> None:
    assembler = Assembler({0: A_BUG})
    made = _supervisor(arguments, assembler, first_retry_seconds=600.0)
    running = asyncio.create_task(made.run())
    await async_wait_until(lambda: len(assembler.made) == 1 and assembler.standing == 0)
    made.stop()
    async with asyncio.timeout(5):
        assert await running == 0


async def test_a_bug_met_in_a_reload_does_not_make_the_proxy_deaf_to_the_next_one(
    config: ConfigFile, flags: list[str]
) -> None:
    failed: list[int] = []

    def read_again() -> RunOptions:
        if "bug" in config.text and not failed:
            failed.append(1)
            raise ZeroDivisionError("a bug")
        return _read(flags)

    assembler = Assembler()
    made = Supervisor(_read(flags), read_again, assemble=assembler)
    running = asyncio.create_task(made.run())
    await async_wait_until(lambda: bool(assembler.made) and assembler.serving)
    config.write("# bug")
    await async_wait_until(lambda: bool(failed))
    config.write("nftables: {masqueradeAll: true}")
    await async_wait_until(lambda: made.reloads.report().count == 1)
    assert assembler.made[-1].proxy.config.masquerade_all
    made.stop()
    assert await running == 0
    assert len(assembler.made) == 1


async def test_a_new_configuration_that_fails_before_it_serves_gives_way_to_the_old_one(
    config: ConfigFile, flags: list[str]
) -> None:
    assembler = Assembler({1: Faulty(NotSupported("not on this machine"))})
    made = _supervisor(flags, assembler)
    running = asyncio.create_task(made.run())
    await async_wait_until(lambda: bool(assembler.made) and assembler.serving)
    config.write("enableProfiling: true")
    await async_wait_until(lambda: len(assembler.made) == 3 and assembler.serving)
    assert [one.proxy.config.enable_profiling for one in assembler.made] == [False, True, False]
    assert made.reloads.report().error == "not on this machine"
    made.stop()
    assert await running == 0


async def test_the_configuration_that_served_last_comes_back_after_several_that_did_not(
    config: ConfigFile, flags: list[str]
) -> None:
    waiting, failing = Waiting(), Faulty(NotSupported("not on this machine"))
    assembler = Assembler({1: waiting, 2: failing})
    made = _supervisor(flags, assembler)
    running = asyncio.create_task(made.run())
    await async_wait_until(lambda: bool(assembler.made) and assembler.serving)
    config.write("enableProfiling: true")
    await async_wait_until(lambda: waiting.runs)
    config.write("clientConnection: {qps: 7}")
    await async_wait_until(lambda: len(assembler.made) == 4 and assembler.serving)
    assert assembler.made[-1].proxy.config == assembler.made[0].proxy.config
    made.stop()
    assert await running == 0


TAKEN = KernelError("the port is taken")


@pytest.mark.parametrize(
    "others",
    [
        {1: Faulty(TAKEN, started=True)},
        {1: Faulty(ZeroDivisionError("a bug"), started=True), 2: Faulty(TAKEN)},
    ],
)
async def test_once_the_new_configuration_served_there_is_no_way_back(
    config: ConfigFile, flags: list[str], others: dict[int, Assembled]
) -> None:
    assembler = Assembler(others)
    made = _supervisor(flags, assembler)
    running = asyncio.create_task(made.run())
    await async_wait_until(lambda: bool(assembler.made) and assembler.serving)
    config.write("enableProfiling: true")
    with pytest.raises(KernelError, match="the port is taken"):
        await asyncio.wait_for(running, 20)


async def test_a_live_change_that_cannot_work_here_is_turned_down(
    config: ConfigFile, flags: list[str]
) -> None:
    assembler = Assembler({0: Refusing()})
    made = _supervisor(flags, assembler)
    running = asyncio.create_task(made.run())
    await async_wait_until(lambda: assembler.standing == 1)
    config.write("detectLocalMode: NodeCIDR")
    await async_wait_until(lambda: made.reloads.report().error == "no pod range")
    assert made.reloads.report().count == 0
    config.write()
    await async_wait_until(lambda: made.reloads.report().error == "")
    assert made.reloads.report().count == 0, "the first configuration is still used"
    made.stop()
    assert await running == 0


@pytest.mark.parametrize("field", ["healthzBindAddress", "metricsBindAddress"])
async def test_a_live_change_to_a_taken_port_is_turned_down_and_the_old_ports_stay_open(
    config: ConfigFile, flags: list[str], field: str
) -> None:
    ports = {"healthzBindAddress": _free_port(), "metricsBindAddress": _free_port()}

    def write(**ports: int) -> None:
        lines = [f"{name}: 127.0.0.1:{port}" for name, port in ports.items()]
        config.write("\n".join(["bindAddressHardFail: true", *lines]))

    write(**ports)
    assembler = Assembler()
    made = _supervisor(flags, assembler)
    running = asyncio.create_task(made.run())
    await async_wait_until(lambda: bool(assembler.made) and assembler.serving)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        moved = {name: _free_port() for name in ports}
        write(**{**moved, field: int(holder.getsockname()[1])})
        await async_wait_until(lambda: "Address already in use" in made.reloads.report().error)
    assert not running.done()
    for port in ports.values():
        with socket.create_connection(("127.0.0.1", port)):
            pass
    write(**moved)
    await async_wait_until(lambda: made.reloads.report().count == 1)
    for port in moved.values():
        with socket.create_connection(("127.0.0.1", port)):
            pass
    made.stop()
    assert await running == 0
    assert len(assembler.made) == 1


async def test_a_port_may_move_from_one_address_to_all(config: ConfigFile, flags: list[str]) -> None:
    port = _free_port()
    hard = "bindAddressHardFail: true\nhealthzBindAddress: 127.0.0.1:%d\nmetricsBindAddress: %s:%d"
    config.write(hard % (_free_port(), "127.0.0.1", port))
    assembler = Assembler()
    made = _supervisor(flags, assembler)
    running = asyncio.create_task(made.run())
    await async_wait_until(lambda: bool(assembler.made) and assembler.serving)
    config.write(config.text.replace(f"127.0.0.1:{port}", f"0.0.0.0:{port}").partition("mode: toy\n")[2])
    await async_wait_until(lambda: made.reloads.report().count == 1)
    with socket.create_connection(("127.0.0.2", port)):
        pass
    made.stop()
    assert await running == 0


SETTING = "net/ipv4/ip_forward"


class SettingHost(UntouchedHost):
    """One setting is made, below a directory that stands for the machine."""

    def prepare(self, choice: Choice) -> tuple[Condition, ...]:
        self.sysctls.ensure(SETTING, 1)
        return ()


class NoHost(UntouchedHost):
    """It must not come to this."""

    def prepare(self, choice: Choice) -> tuple[Condition, ...]:
        raise AssertionError("the host was touched")


@pytest.mark.parametrize(("started", "left"), [(False, "0"), (True, "1")])
async def test_settings_are_put_back_when_the_start_fails_though_they_could_not_be_recorded(
    arguments: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture, *, started: bool, left: str
) -> None:
    setting = tmp_path / "proc/sys" / SETTING
    setting.parent.mkdir(parents=True)
    setting.write_text("0")
    (tmp_path / "file").touch()
    host = SettingHost(tmp_path / "file/state", tmp_path)

    async def fail() -> None:
        async with assemble(_read(arguments), ReloadRecord(), host) as running:
            assert setting.read_text() == "1"
            running.proxy.start.has_started = started
            raise NotSupported("not on this machine")

    with pytest.raises(NotSupported):
        await fail()
    assert setting.read_text() == left
    assert caplog.text.count("Cannot record changed sysctls") == 1


async def test_the_event_loop_runs_while_a_mode_is_chosen_and_the_host_prepared(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, choose_mode = asyncio.get_running_loop(), modes.choose_mode
    turns: list[bool] = []

    def wait_for_loop() -> None:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        turns.append(turned.wait(5))

    class WaitingHost(UntouchedHost):
        def prepare(self, choice: Choice) -> tuple[Condition, ...]:
            wait_for_loop()
            return ()

    def choose(options: RunOptions) -> Choice:
        wait_for_loop()
        return choose_mode(options)

    monkeypatch.setattr(modes, "choose_mode", choose)
    async with assemble(_read(arguments), ReloadRecord(), WaitingHost(tmp_path)):
        pass
    assert turns == [True, True]


async def test_the_files_that_a_kubeconfig_names_are_read_before_the_host_is_touched(
    arguments: list[str], tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{current-context: c, contexts: [{name: c, context: {cluster: c}}],"
        " clusters: [{name: c, cluster: {server: 'https://x', certificate-authority: /nope/ca.crt}}]}"
    )
    from_api = [flag for flag in arguments if not flag.startswith("--manifests=")]
    options = _read([*from_api, f"--kubeconfig={kubeconfig}"])
    with pytest.raises(ConfigError, match=r"certificate-authority /nope/ca\.crt: No such file") as caught:
        await assemble(options, ReloadRecord(), NoHost(options.paths.state_dir)).__aenter__()
    assert str(kubeconfig) in str(caught.value)


async def test_ports_are_closed_before_the_proxy_whose_threads_their_requests_need(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _read(arguments)
    port = int(options.config.metrics_bind_address.rpartition(":")[2])
    refused: list[bool] = []
    close = Proxy.close

    async def note_port(proxy: Proxy) -> None:
        with socket.socket() as client:
            refused.append(client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED)
        await close(proxy)

    monkeypatch.setattr(Proxy, "close", note_port)
    async with assemble(options, ReloadRecord(), UntouchedHost(tmp_path)):
        with socket.create_connection(("127.0.0.1", port)):
            pass
    assert refused == [True]
