"""The life of the process: start, signals, changes of the configuration file, in-process restarts, stop.

A new configuration is validated first. What can change while running is applied at once; for the rest the proxy
is stopped and started again inside this process, and every rule stays in the kernel. A bad file, or one that
this machine does not support, changes nothing but a metric, the log and the status.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from pointsman.app.assembly import assemble, run_until_first_ends
from pointsman.app.reload_record import ReloadRecord
from pointsman.config.command_line import parse_run
from pointsman.config.options import RunOptions
from pointsman.config.reload import Live, NoChange, Rejected, Restart, decide
from pointsman.daemon_thread import run_in_daemon_thread
from pointsman.errors import ConfigError, PointsmanError
from pointsman.kernel.path_watch import watch_path
from pointsman.machine.instance import sole_instance
from pointsman.obs.log import configure, flush, get_log
from pointsman.obs.slow_callbacks import watch_callbacks
from pointsman.waiting import Backoff

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0
"""Before a proxy that ended by an internal error is started again."""

_log = get_log(__name__)


class Assembled(Protocol):
    """A running proxy with everything around it."""

    @property
    def started(self) -> bool:
        """Everything it waits for has arrived, so that it syncs."""

    async def run(self) -> None:
        """Run until cancelled; raises fatal errors."""

    async def apply(self, live: Live) -> None:
        """Apply a configuration that needs no new proxy; raises PointsmanError, with nothing changed, when it cannot work here."""

    def drain(self) -> None:
        """Fail health checks of load balancers, and keep syncing."""

    async def report_stopped(self) -> None:
        """Report on the Node that no proxy follows changes any more."""


Assemble = Callable[[RunOptions, ReloadRecord], AbstractAsyncContextManager[Assembled]]


class Supervisor:
    """Runs proxies one after the other until stopped."""

    def __init__(
        self,
        options: RunOptions,
        read_again: Callable[[], RunOptions],
        *,
        assemble: Assemble = assemble,
        first_retry_seconds: float = FIRST_RETRY_SECONDS,
    ) -> None:
        """`read_again` parses the command line and the file it names once more, or raises ConfigError."""
        self.reloads = ReloadRecord()
        self._running: Assembled | None = None
        self._options = options
        self._read_again = read_again
        self._assemble = assemble
        self._backoff = Backoff(first_retry_seconds, MAX_RETRY_SECONDS)
        self._stop = asyncio.Event()
        self._restart = asyncio.Event()
        self._fallback: RunOptions | None = None
        """What served before a restart, for as long as no proxy has served since."""
        self._draining = False
        """SIGTERM came, and load balancers get time to stop choosing this node."""
        self._reread = asyncio.Event()
        """The configuration may have changed since it was last read."""

    def stop(self) -> None:
        """Stop; the rules stay in the kernel."""
        self._stop.set()

    def drain(self) -> None:
        """Stop after the drain period, in which health checks of load balancers fail; a second call stops at once."""
        period = self._options.drain_period.total_seconds()
        if self._draining or period <= 0:
            self.stop()
            return
        self._draining = True
        if self._running is not None:
            self._running.drain()
        _log.info("Draining: failing health checks, still syncing", stop_after=f"{period:g}s")
        asyncio.get_running_loop().call_later(period, self.stop)

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT; return the exit status."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain)
        loop.add_signal_handler(signal.SIGINT, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reread.set)
        watching = loop.create_task(self._watch_configuration())
        try:
            while not self._stop.is_set():
                await self._run_once()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        _log.info("Stopped, rules stay in place")
        return 0

    async def _run_once(self) -> None:
        """Run one proxy from start to end; raises fatal errors."""
        self._restart.clear()
        began = time.monotonic()
        try:
            await self._run_assembled()
            self._backoff.reset()
        except PointsmanError as error:
            self._fall_back(error)
        except Exception as error:  # noqa: BLE001  an internal error must not end the process
            if time.monotonic() - began > MAX_RETRY_SECONDS:
                self._backoff.reset()
            pause = self._backoff.pause()
            _log.exception("Internal error, restarting the proxy", err=error, after=f"{pause:.0f}s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop.wait()

    async def _run_assembled(self) -> None:
        async with self._assemble(self._options, self.reloads) as running:
            self._running = running
            if self._draining:
                running.drain()
            try:
                await run_until_first_ends(
                    running.run(),
                    self._stop.wait(),
                    self._restart.wait(),
                    self._follow_configuration(running),
                )
            finally:
                self._running = None
                if running.started and not self._restart.is_set():
                    self._fallback = None
                if self._stop.is_set() or not self._restart.is_set():
                    await running.report_stopped()

    def _fall_back(self, error: PointsmanError) -> None:
        """Return to the configuration that worked before; raises the error where there is none."""
        if self._fallback is None:
            raise error
        self._options, self._fallback = self._fallback, None
        self.reloads.on_rejected(str(error))
        _log.error("New configuration does not work on this node, returning to the old one", err=error)

    async def _watch_configuration(self) -> None:
        if self._options.config_file is None:
            return
        changes = watch_path(self._options.config_file)
        self._reread.set()
        async for _ in changes:
            self._reread.set()

    async def _follow_configuration(self, running: Assembled) -> None:
        """Read the configuration whenever it may have changed, and apply it."""
        while True:
            await self._reread.wait()
            self._reread.clear()
            try:
                await self._reload(running)
            except Exception as error:  # noqa: BLE001  the next change of the file must still be read
                _log.exception("Internal error while reading the configuration", err=error)

    async def _reload(self, running: Assembled) -> None:
        # A file system that does not answer holds up neither the event loop nor the end of the process.
        decision = decide(self._options, await run_in_daemon_thread(self._read, "read configuration"))
        if isinstance(decision, Live):
            decision = await self._apply(decision, running)
        self.reloads.on_decision(decision)
        match decision:
            case Rejected(reason=reason):
                _log.error("New configuration rejected, keeping the old one", err=reason)
            case NoChange(options=options):
                self._options = options
            case Live(options=options, changes=changes):
                self._options = options
                _log.info("New configuration applied", changes=[str(change) for change in changes])
            case Restart(options=options, changes=changes):
                _log.info("Restarting the proxy inside this process", changes=[str(one) for one in changes])
                if running.started or self._fallback is None:
                    self._fallback = self._options
                self._options = options
                self._restart.set()

    def _read(self) -> RunOptions | ConfigError:
        try:
            return self._read_again()
        except ConfigError as error:
            return error

    async def _apply(self, live: Live, running: Assembled) -> Live | Rejected:
        try:
            await running.apply(live)
        except PointsmanError as error:
            return Rejected(str(error))
        for warning in live.options.warnings:
            if warning not in self._options.warnings:
                _log.warning(warning)
        return live


def serve(argv: Sequence[str], options: RunOptions) -> int:
    """Run until stopped; return the exit status of the process."""

    async def run() -> int:
        return await Supervisor(options, lambda: parse_run(argv, program=options.program)).run()

    configure(options.config.logging.to_settings())
    watch_callbacks(os.environ)
    try:
        _check_manifests(options.manifests)
        with sole_instance(wait=options.wait_for_instance) as alone:
            return asyncio.run(run()) if alone else 0
    except PointsmanError as error:
        _log.error("Cannot run", err=error)
        return 1
    finally:
        flush()


def _check_manifests(path: Path | None) -> None:
    """Raise ConfigError for a path that does not exist at start; one that vanishes later is waited for."""
    try:
        if path is not None:
            path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([f"--manifests: cannot read {path}: {reason}"]) from error
