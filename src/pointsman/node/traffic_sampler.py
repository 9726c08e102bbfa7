"""Samples of the traffic for the page: the kernel is read only while the page is open, and never in the sync path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from pointsman.backends import mode_named
from pointsman.backends.contract import Counting
from pointsman.daemon_thread import CpuMeter, run_in_daemon_thread
from pointsman.errors import KernelError
from pointsman.machine.settings import trim_heap
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.node.proxy import Proxy
from pointsman.obs.log import get_log
from pointsman.report.samples import PlanPlaces, TrafficSamples
from pointsman.report.traffic import Places, Reading, read_kernel

INTERVAL_SECONDS, FIRST_INTERVAL_SECONDS = 5.0, 1.0
IDLE_SECONDS = 120.0
"""After the last request, sampling ends and its figures are dropped."""
MAX_FLOWS = 50_000
"""Flows remembered one by one, where the kernel does not count connections."""

_MIN_PAUSE_FACTOR = 20
"""A reading is followed by a pause of at least that many times its CPU time: it takes a twentieth of a core at most."""
_MANY_PLANS = 1000

_log = get_log(__name__)

Read = Callable[[Places, Counting, int], Reading]


class TrafficSampler:
    """Reads the kernel every few seconds on a thread of its own, for as long as the page requests its samples."""

    def __init__(
        self, proxy: Proxy, read: Read = read_kernel, interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        self._proxy, self._read_kernel = proxy, read
        self._interval_seconds = interval_seconds
        self._kept = TrafficSamples()
        self._cpu = CpuMeter()
        self._wanted_until = 0.0
        self._wanted = asyncio.Event()

    @property
    def samples(self) -> TrafficSamples:
        """The samples so far; reading them keeps the sampling running."""
        self._wanted_until = time.monotonic() + IDLE_SECONDS
        self._wanted.set()
        return self._kept

    async def run(self) -> None:
        """Sample whenever wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            notes: tuple[str, ...] = ()
            try:
                await self._sample()
            except KernelError as error:
                notes = (f"the kernel cannot be read: {error}",)
                _log.warning("Cannot sample traffic", err=error)
            self._wanted.clear()
            self._kept = TrafficSamples(notes)
            if sum(len(family.tracker.states) for family in self._proxy.families.values()) >= _MANY_PLANS:
                await asyncio.to_thread(trim_heap)

    async def _sample(self) -> None:
        before: Reading | None = None
        while time.monotonic() < self._wanted_until:
            plans = {
                family.family: (await family.snapshot()).plans for family in self._proxy.families.values()
            }
            counting = mode_named(self._proxy.config.mode).counting
            work = partial(self._cpu.run, partial(self._read, plans, counting, before))
            before = await run_in_daemon_thread(work, "traffic")
            pause = self._interval_seconds
            if self._kept.is_empty:
                pause = min(pause, FIRST_INTERVAL_SECONDS)
            await asyncio.sleep(max(pause, _MIN_PAUSE_FACTOR * self._cpu.last))

    def _read(
        self,
        plans: Mapping[Family, Mapping[ServicePortName, ServicePlan]],
        counting: Counting,
        before: Reading | None,
    ) -> Reading:
        """Take a reading, and the sample since the one before."""
        places = PlanPlaces(plans)
        now = self._read_kernel(places, counting, MAX_FLOWS)
        if before is not None:
            self._kept.add(places, before, now, counting)
        return now
