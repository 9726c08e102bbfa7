"""What the datapath probe does besides connecting: it names a likely cause, and outlives a guess that goes wrong."""

from __future__ import annotations

import asyncio
import contextlib

from tests import factory
from tests.process.assembled import assembled, until

from pointsman.explain.report import Explanation
from pointsman.explain.target import Target
from pointsman.model.addresses import Family
from pointsman.node.self_probe import SelfProbe


async def test_a_guess_that_fails_ends_nothing_and_is_not_made_again_at_once() -> None:
    guesses = 0

    async def explain(_target: Target) -> Explanation:
        nonlocal guesses
        guesses += 1
        raise RuntimeError("a rule that nobody foresaw")

    async with assembled(families=(Family.IPV4,)) as running:
        addresses = [{"type": "InternalIP", "address": "192.168.1.10"}]
        running.source.put(factory.node("n1", addresses=addresses))
        running.source.listed()
        await running.settled()
        probe = SelfProbe(running.proxy, {Family.IPV4: factory.packed("192.0.2.77")}, explain, period=0.001)
        probing = asyncio.create_task(probe.run())
        failures = running.metrics.datapath_probes.labels(ip_family="IPv4", result="failure")
        try:
            await until(lambda: probing.done() or failures._value.get() >= 3)
            assert not probing.done(), probing.exception()
        finally:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing
        reasons = {check.name: check.reason for check in running.proxy.readiness.checks()}
        assert reasons["IPv4-datapath"].endswith("its cause could not be looked for; see the log")
        assert guesses == 1
