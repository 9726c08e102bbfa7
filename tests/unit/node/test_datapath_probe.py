"""What the datapath probe does besides connecting: it publishes the result, and then names a likely cause."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from tests import factory
from tests.harness.assembled import Assembly, assembled
from tests.harness.metrics import read_metric
from tests.harness.waiting import async_wait_until

from pointsman.explain.service_port import Explanation
from pointsman.explain.target import Target
from pointsman.model.addresses import Family
from pointsman.node.datapath_probe import DatapathProbe, Explain


class Probed:
    """A proxy whose packets are not translated."""

    def __init__(self, running: Assembly, explain: Explain) -> None:
        self.running = running
        self.probes = 0
        """Probes that have ended, whatever their result."""
        probe = DatapathProbe(
            running.proxy,
            {Family.IPV4: factory.packed("192.0.2.77")},
            explain,
            sleep=self._skip_interval,
            timeout=0.01,
            cause_timeout=0.05,
        )
        self.task = asyncio.create_task(probe.run())

    async def _skip_interval(self, _seconds: float) -> None:
        self.probes += 1
        await asyncio.sleep(0.001)

    @property
    def failures(self) -> float:
        text = self.running.metrics.render().decode()
        return read_metric(text, "pointsman_datapath_probes_total", ip_family="IPv4", result="failure")

    @property
    def verdict(self) -> str:
        found = self.running.condition("DatapathIPv4")
        assert found is not None
        return found.message

    async def fails(self, times: int) -> None:
        """Until so many more probes have failed."""
        goal = self.failures + times
        await self._wait_until(lambda: self.failures >= goal)

    async def ends(self, times: int) -> None:
        """Until so many more probes have ended."""
        goal = self.probes + times
        await self._wait_until(lambda: self.probes >= goal)

    async def _wait_until(self, is_reached: Callable[[], bool]) -> None:
        await async_wait_until(lambda: self.task.done() or is_reached())
        assert not self.task.done(), self.task.exception()


@contextlib.asynccontextmanager
async def probed(explain: Explain, *, stuck: threading.Event | None = None) -> AsyncIterator[Probed]:
    """`stuck` holds up the worker thread from before the first probe, until it is set."""
    async with assembled(families=(Family.IPV4,)) as running, contextlib.AsyncExitStack() as stack:
        addresses = [{"type": "InternalIP", "address": "192.168.1.10"}]
        running.source.put(factory.node("n1", addresses=addresses))
        running.source.listed()
        await running.settled()
        if stuck is not None:
            stack.enter_context(held_up(running, stuck))
        made = Probed(running, explain)
        try:
            yield made
        finally:
            made.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await made.task


@contextlib.contextmanager
def held_up(running: Assembly, until_set: threading.Event) -> Iterator[None]:
    family = running.proxy.families[Family.IPV4]
    holding = asyncio.create_task(family.run_blocking(lambda: until_set.wait(20)))
    try:
        yield
    finally:
        until_set.set()
        holding.cancel()


async def clueless(_target: Target) -> Explanation:
    raise RuntimeError("an unforeseen rule")


async def test_a_guess_that_fails_ends_nothing_and_is_not_made_again_at_once() -> None:
    guesses = 0

    async def explain(target: Target) -> Explanation:
        nonlocal guesses
        guesses += 1
        return await clueless(target)

    async with probed(explain) as made:
        await made.fails(3)
        assert made.verdict.endswith("the search for its cause failed; see the log")
        assert guesses == 1


async def test_a_failure_is_published_before_its_cause_is_searched_for() -> None:
    asked = asyncio.Event()

    async def explain(_target: Target) -> Explanation:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with probed(explain) as made:
        await asked.wait()
        assert made.verdict not in ("", "not yet")
        await made.fails(3)
        assert made.verdict.endswith("its cause was not found within 0.05 s")


async def test_changes_of_other_services_that_wait_hide_no_failure() -> None:
    let_go = threading.Event()
    async with probed(clueless) as made:
        await made.fails(1)
        with held_up(made.running, let_go):
            made.running.source.put(factory.service("busy", clusterIP="10.96.0.12"))
            await async_wait_until(lambda: made.running.proxy.families[Family.IPV4].pending > 0)
            await made.fails(3)


async def test_a_failure_does_not_count_before_the_rules_of_the_probe_are_due() -> None:
    let_go = threading.Event()
    async with probed(clueless, stuck=let_go) as made:
        await made.ends(3)
        assert (made.failures, made.verdict) == (0, "not probed yet")
        let_go.set()
        await made.fails(1)
