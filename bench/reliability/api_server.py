"""An API server that is away, cuts, floods or lies."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence

from bench.reliability.world import Done, FaultyNode, Row, Work
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import endpoint_slice, node, service
from tests.harness.waiting import wait_until
from tests.process.faults.churn import flood
from tests.unit.kube.consumer import consuming, wait_for_services, wait_for_watches
from tests.unit.kube.lies import LIES, Lie

FORMS = 40


def server_faults(count: int, chance: random.Random) -> Work:
    """Stops, cuts, garbage, errors, forgetting; after each the next change must arrive."""

    def away(made: FaultyNode) -> None:
        made.api.stop()
        time.sleep(chance.uniform(0.1, 1.0))
        made.api.start()

    def sent(fault: Callable[[FakeApiServer], object]) -> Callable[[FaultyNode], None]:
        def work(made: FaultyNode) -> None:
            made.api.call(fault)

        return work

    def lie(server: FakeApiServer) -> None:
        server.compact()
        empty = {"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": []}
        server.fail_next(200, path="services", body=json.dumps(empty).encode(), watch=False)
        server.end_watches("Service")

    faults: list[Callable[[FaultyNode], None]] = [
        away,
        sent(lambda server: server.break_watches(partial=b'{"type":"MODIFIED","object":{"kin')),
        sent(lambda server: server.send_raw("Service", b"\x00\xffgarbage\n")),
        sent(lambda server: server.send_error("EndpointSlice", 410, "Expired")),
        sent(lambda server: server.fail_next(500, path="services")),
        sent(lambda server: server.end_watches()),
        sent(lie),
    ]

    def work(made: FaultyNode) -> Done:
        for turn in range(count):
            chance.choice(faults)(made)
            made.add(f"turn-{turn}", 20 + turn % 200)
            made.serves(f"10.96.0.{20 + turn % 200}")
            made.remove(f"turn-{turn}")
        return Done(count)

    return work


def churn(seconds: float, per_second: int) -> Work:
    def work(made: FaultyNode) -> Done:
        names = [f"busy-{number}" for number in range(100)]
        for number, name in enumerate(names, start=100):
            made.add(name, number)
        sent = 0
        for sent in flood(made.api, names, 5.0, per_second, 100_000):  # noqa: B007
            pass
        warm = _wait_for_events(made, sent)
        before = made.process.resident_kilobytes()
        for sent in flood(made.api, names, seconds, per_second, 10_000_000):  # noqa: B007
            pass
        _wait_for_events(made, warm + sent)
        return Done(sent, growth_kb=f"{made.process.resident_kilobytes() - before}")

    return work


def _wait_for_events(made: FaultyNode, events: int) -> int:
    name = "kubeproxy_sync_proxy_rules_endpoint_changes_total"
    return int(wait_until(lambda: made.node.metric(name), lambda seen: seen >= events, seconds=120))


def choose_forms() -> list[Lie]:
    """Forty lies of all sorts; without those that only keep a client waiting."""
    chosen = [lie for lie in LIES if not lie.hold and b"Retry-After" not in lie.answer]
    return [chosen[number * len(chosen) // FORMS] for number in range(FORMS)]


def _send_lie(server: FakeApiServer, lie: Lie) -> None:
    server.answer_raw(lie.answer, path="services", watch=lie.watch or None)
    if not lie.watch:
        server.compact()
    server.break_watches("Service")


def lies(forms: Sequence[Lie], times: int) -> Row:
    """Each lie many times to the client alone, whose pauses take no time here.

    A whole proxy would wait between them, longer and longer. After each lie the truth must arrive, and what was known
    before must still be known.
    """
    began = time.monotonic()
    arrived = asyncio.run(_send_lies(forms, times))
    result = f"{arrived} followed by the truth"
    return Row(
        f"API server lying in {len(forms)} forms",
        "any",
        len(forms) * times,
        0,
        0,
        result,
        "",
        time.monotonic() - began,
    )


async def _send_lies(forms: Sequence[Lie], times: int) -> int:
    arrived = 0
    for lie in forms:
        async with FakeApiServer(watch_list=False) as server:
            for item in (node("n1"), service("before"), endpoint_slice("before-1", "10.1.0.1")):
                server.add(item)
            async with consuming(server, watch_list=False) as consumer:
                await wait_for_watches(server)
                for turn in range(times):
                    _send_lie(server, lie)
                    server.add(service(f"after-{turn}"))
                    await wait_for_services(consumer, "before", f"after-{turn}")
                    arrived += 1
    return arrived
