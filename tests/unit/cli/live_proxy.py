"""A proxy with a scripted kernel on a thread of its own, reachable through its control socket and status page."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.fake.recording import RecordingBackend
from tests.harness.assembled import Assembly
from tests.harness.traffic import ScriptedTraffic
from tests.harness.waiting import wait_until

from pointsman.app.control_handlers import build_control_routes, build_page_data_routes
from pointsman.conditions import Condition
from pointsman.kernel.rtnl import Route
from pointsman.kube.status import WatchStatus
from pointsman.machine.host_facts import HostFacts
from pointsman.model.addresses import Family
from pointsman.model.node_context import find_host_ips
from pointsman.model.objects import EndpointSlice, KubeObject, Node, Service, ServiceCIDR
from pointsman.node.inspector import Inspector
from pointsman.node.traffic_sampler import TrafficSampler
from pointsman.report.status import ReloadReport
from pointsman.serve.control import ControlServer
from pointsman.serve.listeners import Listener
from pointsman.serve.messages import route
from pointsman.serve.page import build_page_routes


def _addresses(objects: Sequence[KubeObject]) -> list[bytes]:
    nodes = [item for item in objects if isinstance(item, Node)]
    return [address for node in nodes for address in find_host_ips(node) if len(address) == 4]


def _watch(objects: int) -> WatchStatus:
    return WatchStatus(connected=True, synced=True, last_event=time.monotonic(), lists=1, objects=objects)


class ClearHost:
    """A host that is in nobody's way."""

    def look(self, family: Family, addresses: Sequence[bytes]) -> HostFacts:
        return HostFacts(family, forwarding=True, routes={one: Route(interface="eth0") for one in addresses})


class LiveProxy:
    """What a test may do with it from outside its event loop."""

    def __init__(self, socket: Path, node_name: str) -> None:
        self.socket = socket
        self._node_name = node_name
        self.page_address = ""
        self.reload = ReloadReport()
        self.traffic = ScriptedTraffic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._assembly: Assembly | None = None
        self._stop: asyncio.Event | None = None

    @property
    def arguments(self) -> list[str]:
        """What tells a command where this proxy is."""
        return ["--control-socket", str(self.socket)]

    @property
    def backend(self) -> RecordingBackend:
        assert self._assembly is not None
        return self._assembly.backends[Family.IPV4]

    def put(self, *objects: KubeObject) -> None:
        """Deliver objects and wait until they are programmed."""
        assembly, loop = self._assembly, self._loop
        assert assembly is not None
        assert loop is not None

        async def deliver() -> None:
            assembly.source.put(*objects)
            await assembly.settled()

        asyncio.run_coroutine_threadsafe(deliver(), loop).result(20)

    def put_without_waiting(self, *objects: KubeObject) -> None:
        """Deliver objects that may never be programmed; returns after the first attempt."""
        assembly, loop = self._assembly, self._loop
        assert assembly is not None
        assert loop is not None
        record = assembly.proxy.reporter.statuses[Family.IPV4]
        before = len(record.history)
        loop.call_soon_threadsafe(assembly.source.put, *objects)
        wait_until(lambda: len(record.history) > before)

    def raise_conditions(self, *conditions: Condition) -> None:
        """Have checks of the node fail."""
        assembly, loop = self._assembly, self._loop
        assert assembly is not None
        assert loop is not None
        loop.call_soon_threadsafe(assembly.board.replace, "a test", conditions)

    async def serve(self, objects: Sequence[KubeObject], ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        assembly = self._assembly = Assembly(node_name=self._node_name)
        assembly.machine.addresses[Family.IPV4] = (b"\x7f\0\0\1", *_addresses(objects))
        assembly.source.statuses = {
            kind.__name__: _watch(sum(isinstance(item, kind) for item in objects))
            for kind in (Node, ServiceCIDR, Service, EndpointSlice)
        }
        assembly.machine.changes.put_nowait(None)
        running = asyncio.create_task(assembly.proxy.run())
        sampler = TrafficSampler(assembly.proxy, self.traffic.read, interval_seconds=0.2)
        sampling = asyncio.create_task(sampler.run())
        inspector = Inspector(assembly.proxy, lambda: self.reload, ClearHost(), sampler=sampler)
        control = ControlServer(self.socket, build_control_routes(inspector))
        listener = Listener("page", route(build_page_routes(build_page_data_routes(inspector))))
        try:
            assert await control.start()
            await listener.start("127.0.0.1:0")
            host, port = listener.addresses[0]
            self.page_address = f"http://{host}:{port}/"
            assembly.source.put(*objects)
            assembly.source.listed()
            async with asyncio.timeout(20):
                await assembly.settled()
            ready()
            await self._stop.wait()
        finally:
            await listener.stop()
            await control.stop()
            running.cancel()
            sampling.cancel()
            await asyncio.gather(running, sampling, return_exceptions=True)
            await assembly.proxy.close()

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)


@contextlib.contextmanager
def live_proxy(directory: Path, *objects: KubeObject, node_name: str = "n1") -> Iterator[LiveProxy]:
    """Running until the block ends."""
    proxy = LiveProxy(directory / "control" / "control.sock", node_name)
    ready = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(proxy.serve(objects, ready.set))
        except BaseException as error:  # noqa: BLE001 shown by the test below
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(30), "the proxy did not get ready"
        assert not failures, failures
        yield proxy
    finally:
        proxy.stop()
        thread.join(30)
    assert not failures, failures
