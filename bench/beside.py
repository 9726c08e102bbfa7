"""Delay of a change while commands run in a loop, or ten browsers show the status page: status, list, explain, verify, page.

A proxy with its real backend runs in a network namespace of its own. One endpoint after the other is replaced; each time
counts from the event until the kernel has committed, and the longest is what a command may cost. Every
command runs again as soon as it is answered; each browser asks for its data every five seconds, while the traffic is sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from bench.measured import compute_percentile, print_row, run_child
from bench.objects import encode_service, encode_slice
from bench.proxies import read_memory_mib

from pointsman.app import modes
from pointsman.backends import mode_named
from pointsman.conditions import ConditionBoard
from pointsman.config.command_line import parse_run
from pointsman.config.defaults import with_mode
from pointsman.explain.target import parse_target
from pointsman.kube.event_recorder import Recorder
from pointsman.kube.status import WatchStatus
from pointsman.lab.netns import Namespace
from pointsman.machine.host_facts import LinuxMachine
from pointsman.machine.settings import freeze_heap
from pointsman.model.addresses import Family
from pointsman.model.objects import EndpointSlice, Node, Service, ServiceCIDR, SourceEvent, Synced, Upsert
from pointsman.node.inspector import Inspector
from pointsman.node.proxy import Proxy
from pointsman.node.state import Settings
from pointsman.node.traffic_sampler import TrafficSampler
from pointsman.obs.registry import Metrics
from pointsman.report.history import HistoryQuery
from pointsman.report.status import ReloadReport
from pointsman.serve.connections import Connections
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import SyncOutcome

BROWSERS, REFRESH_SECONDS = 10, 5.0
PAUSE = 0.05
"""Between two changes: syncs that follow each other without one would leave nothing to be in the way of."""
LEAST_SECONDS = 5.0
WAIT = 60.0
CONFIG = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {mode}
clusterCIDR: 10.128.0.0/9
iptables: {{minSyncPeriod: 1ms, syncPeriod: 1h}}
nftables: {{minSyncPeriod: 1ms, syncPeriod: 1h}}
"""


class Objects:
    """A source that has everything in memory."""

    statuses: Mapping[str, WatchStatus] = {}
    server = advice = ""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[SourceEvent | None] = asyncio.Queue()

    async def list_node_names(self) -> list[str]:
        return []

    async def events(self) -> AsyncIterator[SourceEvent]:
        while (event := await self.queue.get()) is not None:
            yield event

    async def close(self) -> None:
        self.queue.put_nowait(None)


class NextSync(SyncListener):
    """Says when the next sync of IPv4 has succeeded."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def on_synced(self, outcome: SyncOutcome) -> None:
        if outcome.family is Family.IPV4:
            self.event.set()


def looks_at(inspector: Inspector, services: int) -> dict[str, Callable[[], Awaitable[object]]]:
    target = parse_target(f"default/service-{services // 2}")

    async def nothing() -> None:
        await asyncio.sleep(PAUSE)

    async def status() -> None:
        msgspec.json.encode(await inspector.status())
        await asyncio.sleep(0.001)

    since = 0

    async def page() -> None:
        nonlocal since
        history = inspector.history(HistoryQuery(since=since))
        since = history.revision
        for answer in (
            history,
            await inspector.status(count=False),
            await inspector.services("", 0, 50, "traffic"),
            inspector.traffic(f"default/service-{services // 2}"),
            await inspector.explain(target, "", kernel=False),
        ):
            msgspec.json.encode(answer)
        await asyncio.sleep(REFRESH_SECONDS / BROWSERS)

    return {
        "nothing": nothing,
        "status": status,
        "list": lambda: inspector.services("", 0, 200),
        "explain": lambda: inspector.explain(target, "", kernel=True),
        "verify": inspector.verify,
        "page": page,
    }


async def measure(
    mode: str, services: int, endpoints: int, changes: int, looking: str, pause: float
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "config.yaml"
        file.write_text(CONFIG.format(mode=mode))
        options = parse_run([f"--config={file}", f"--state-dir={directory}"], program="pointsman")
        config, sysctls = with_mode(options.config, mode), modes.open_sysctls(Path(directory))
        backend = mode_named(mode).backend(modes.build_setup(options, mode), Family.IPV4, sysctls)
        source, next_sync, metrics = Objects(), NextSync(), Metrics(mode)
        proxy = Proxy(
            Settings(config=config, node_name="node-0", from_manifests=True),
            source,
            {Family.IPV4: backend},
            LinuxMachine(),
            metrics,
            Recorder(),
            ConditionBoard(),
            Connections(),
            unsupported={},
            listeners=(next_sync,),
        )
        running = asyncio.create_task(proxy.run())
        try:
            for index in range(services):
                source.queue.put_nowait(Upsert(msgspec.json.decode(encode_service(index), type=Service)))
                source.queue.put_nowait(Upsert(_slice(index, endpoints, 0)))
            for kind in (Service, EndpointSlice, Node, ServiceCIDR):
                source.queue.put_nowait(Synced(kind))
            async with asyncio.timeout(10 * WAIT):
                await next_sync.event.wait()
            freeze_heap()
            sampler = TrafficSampler(proxy)
            sampling = asyncio.create_task(sampler.run())
            inspector = Inspector(proxy, ReloadReport, sampler=sampler)
            rows, number = [], itertools.count()
            for what, look in looks_at(inspector, services).items():
                if looking not in ("", what):
                    continue
                figures = await _while_looking(
                    look, source, next_sync, services, endpoints, changes, number, pause
                )
                rows.append(
                    {"mode": mode, "services": services, "endpoints": endpoints, "looking": what, **figures}
                )
            return rows
        finally:
            running.cancel()
            sampling.cancel()
            await asyncio.gather(running, sampling, return_exceptions=True)
            await proxy.close()


def _slice(index: int, endpoints: int, generation: int) -> EndpointSlice:
    return msgspec.json.decode(encode_slice(index, endpoints, generation), type=EndpointSlice)


async def _while_looking(
    look: Callable[[], Awaitable[object]],
    source: Objects,
    next_sync: NextSync,
    services: int,
    endpoints: int,
    changes: int,
    number: Iterator[int],
    pause: float,
) -> dict[str, Any]:
    times: list[float] = []
    looks: list[float] = []

    async def keep_looking() -> None:
        while True:
            began = time.perf_counter()
            await look()
            looks.append(time.perf_counter() - began)

    looking = asyncio.create_task(keep_looking())
    started = time.perf_counter()
    try:
        until = time.perf_counter() + LEAST_SECONDS
        while len(times) < changes or not looks or time.perf_counter() < until:
            generation, index = divmod(next(number), services)
            changed = _slice(index, endpoints, 1 + generation % 4)
            next_sync.event.clear()
            began = time.perf_counter()
            source.queue.put_nowait(Upsert(changed))
            async with asyncio.timeout(WAIT):
                await next_sync.event.wait()
            times.append(time.perf_counter() - began)
            await asyncio.sleep(pause)
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
    return {
        "looks": len(looks),
        "look_p50_ms": compute_percentile(looks, 0.5) * 1000,
        "changes": len(times),
        "change_p50_ms": compute_percentile(times, 0.5) * 1000,
        "change_p99_ms": compute_percentile(times, 0.99) * 1000,
        "longest_ms": max(times) * 1000,
        "changes_per_second": len(times) / (time.perf_counter() - started),
        "resident_mb": read_memory_mib(),
    }


def _inside(options: argparse.Namespace) -> None:
    """The measurement itself, in a process whose every thread belongs to the namespace."""
    services, endpoints = map(int, options.inside.split("x"))
    namespace = Namespace()
    for command in ("link set lo up", "address add 172.30.0.10/32 dev lo"):
        namespace.run(["ip", *command.split()])
    with namespace.entered():
        rows = asyncio.run(
            measure(options.mode, services, endpoints, options.changes, options.looking, options.pause)
        )
    print(json.dumps(rows))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="1000x10,10000x10")
    parser.add_argument("--mode", default="nftables")
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--looking", default="", help="one of the commands; default all")
    parser.add_argument("--pause", type=float, default=PAUSE, help="seconds between two changes")
    parser.add_argument("--inside", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> Any:
    if options.inside:
        _inside(options)
        return None
    rows: list[dict[str, Any]] = []
    for size in options.sizes.split(","):
        flags = ["--mode", options.mode, "--changes", str(options.changes), "--looking", options.looking]
        flags += ["--pause", str(options.pause)]
        for row in run_child("beside", "--inside", size, *flags):
            rows.append(row)
            print_row(row)
    return rows
