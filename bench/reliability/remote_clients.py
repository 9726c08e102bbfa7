"""Remote clients hold connections to the served ports, idle or sending requests, up to the limit of descriptors."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from bench.reliability.world import Done, FaultyNode, Row, run_node, under_traffic
from tests.harness.node import HEALTH_PORT
from tests.harness.remote_clients import (
    BALANCER,
    HEALTH_CHECK_PORT,
    OPEN_TO_ALL,
    PORTS,
    flood_requests,
    hold_connections,
    raise_descriptor_limit,
    read_statuses,
)
from tests.harness.waiting import wait_until

IDLE = 1000
"""Connections that are hold_connections to each port."""
HASTY = 200
"""Connections to each port whose client sends requests without a pause; together more than the limit of remote ones."""
FEW = 200
"""Descriptors of a process that has few."""


def connections_held(seconds: float) -> Row:
    return _probed(f"{IDLE} idle connections at each port", hold_connections, IDLE, seconds)


def asked_without_pause(seconds: float) -> Row:
    return _probed(f"{HASTY} remote clients at each port without a pause", flood_requests, HASTY, seconds)


def _probed(
    fault: str, clients: Callable[..., AbstractContextManager[None]], count: int, seconds: float
) -> Row:
    """Meanwhile a scraper, the kubelet and a load balancer ask every port once a second."""

    def work(made: FaultyNode) -> Done:
        asked = unanswered = 0
        with raise_descriptor_limit(), clients(made.node, count, *PORTS):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                asked += 1
                unanswered += read_statuses(made.node) != {200}
                time.sleep(1)
        return Done(
            count * len(PORTS), f"{asked - unanswered} of {asked} rounds of probes answered", lost=unanswered
        )

    with run_node("nftables", BALANCER, **OPEN_TO_ALL) as made:
        wait_until(lambda: made.node.get("/", HEALTH_CHECK_PORT).status == 200)
        return under_traffic(f"{fault}, {seconds:.0f} s", made, work)


def descriptors_exhausted(count: int) -> Row:
    """With few descriptors and more remote clients than those: watches are cut, and what changed then must be served."""

    def work(made: FaultyNode) -> Done:
        unanswered = 0
        with raise_descriptor_limit(), hold_connections(made.node, FEW, *PORTS):
            for turn in range(count):
                made.api.call(lambda server: server.end_watches())
                made.add(f"late-{turn}", 20 + turn)
                made.serves(f"10.96.0.{20 + turn}")
                unanswered += made.node.get("/healthz", HEALTH_PORT).status != 200
        return Done(count, f"{count} changes served", lost=unanswered)

    limit = ("prlimit", f"--nofile={FEW}:{FEW}")
    with run_node("nftables", BALANCER, limit, **OPEN_TO_ALL) as made:
        wait_until(lambda: made.node.get("/", HEALTH_CHECK_PORT).status == 200)
        return under_traffic(f"remote clients hold more than its {FEW} descriptors", made, work)
