"""An API server that is away, cuts, floods or lies."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence

from bench.reliability.world import Done, Row, Work, World
from tests.fake.apiserver import FakeApiServer
from tests.faults.churn import flood
from tests.harness.kube_objects import endpoint_slice, node, service
from tests.harness.waiting import wait_until
from tests.unit.kube.consumer import all_watched, consuming, until
from tests.unit.kube.lies import LIES, Lie

FORMS = 40


def server_faults(count: int, chance: random.Random) -> Work:
    """Stops, cuts, garbage, errors, forgetting; after each the next change must arrive."""

    def away(made: World) -> None:
        made.api.stop()
        time.sleep(chance.uniform(0.1, 1.0))
        made.api.start()

    def sent(trouble: Callable[[FakeApiServer], object]) -> Callable[[World], None]:
        def work(made: World) -> None:
            made.api.call(trouble)

        return work

    def lie(server: FakeApiServer) -> None:
        server.compact()
        empty = {"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": []}
        server.fail_next(200, path="services", body=json.dumps(empty).encode(), watch=False)
        server.end_watches("Service")

    troubles: list[Callable[[World], None]] = [
        away,
        sent(lambda server: server.break_watches(partial=b'{"type":"MODIFIED","object":{"kin')),
        sent(lambda server: server.send_raw("Service", b"\x00\xffgarbage\n")),
        sent(lambda server: server.send_error("EndpointSlice", 410, "Expired")),
        sent(lambda server: server.fail_next(500, path="services")),
        sent(lambda server: server.end_watches()),
        sent(lie),
    ]

    def work(made: World) -> Done:
        for turn in range(count):
            chance.choice(troubles)(made)
            made.add(f"turn-{turn}", 20 + turn % 200)
            made.serves(f"10.96.0.{20 + turn % 200}")
            made.remove(f"turn-{turn}")
        return Done(count)

    return work


def churn(seconds: float, per_second: int) -> Work:
    def work(made: World) -> Done:
        names = [f"busy-{number}" for number in range(100)]
        for number, name in enumerate(names, start=100):
            made.add(name, number)
        sent = 0
        for sent in flood(made.api, names, 5.0, per_second, 100_000):  # noqa: B007
            pass
        warm = _caught_up(made, sent)
        before = made.process.resident_kilobytes()
        for sent in flood(made.api, names, seconds, per_second, 10_000_000):  # noqa: B007
            pass
        _caught_up(made, warm + sent)
        return Done(sent, growth_kb=f"{made.process.resident_kilobytes() - before}")

    return work


def _caught_up(made: World, events: int) -> int:
    name = "kubeproxy_sync_proxy_rules_endpoint_changes_total"
    return int(wait_until(lambda: made.node.metric(name), lambda seen: seen >= events, seconds=120))


def forms() -> list[Lie]:
    """Forty lies of all sorts; without those that only keep a client waiting."""
    told = [lie for lie in LIES if not lie.hold and b"Retry-After" not in lie.answer]
    return [told[number * len(told) // FORMS] for number in range(FORMS)]


def _tell(server: FakeApiServer, lie: Lie) -> None:
    server.answer_raw(lie.answer, path="services", watch=lie.watch or None)
    if not lie.watch:
        server.compact()
    server.break_watches("Service")


def lies(told: Sequence[Lie], times: int) -> Row:
    """Each lie many times to the client alone, whose pauses take no time here.

    A whole proxy would wait between them, longer and longer. After each lie the truth must arrive, and what was known
    before must still be known.
    """
    began = time.monotonic()
    arrived = asyncio.run(_lied_to(told, times))
    heard = f"{arrived} followed by the truth"
    return Row(
        f"API server lying in {len(told)} forms",
        "any",
        len(told) * times,
        0,
        0,
        heard,
        "",
        time.monotonic() - began,
    )


async def _lied_to(told: Sequence[Lie], times: int) -> int:
    arrived = 0
    for lie in told:
        async with FakeApiServer(watch_list=False) as server:
            for item in (node("n1"), service("before"), endpoint_slice("before-1", "10.1.0.1")):
                server.add(item)
            async with consuming(server, watch_list=False) as consumer:
                await all_watched(server)
                for turn in range(times):
                    _tell(server, lie)
                    server.add(service(f"after-{turn}"))
                    await until(consumer, "before", f"after-{turn}")
                    arrived += 1
    return arrived
