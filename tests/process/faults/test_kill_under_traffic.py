"""kill -9 at random moments, with connections running and objects changing: no connection is lost."""

from __future__ import annotations

import random
import signal
import time

import pytest
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

pytestmark = needs_root

WEB = (web_service(), *web_slices(), node_object())
FRONTENDS = (("10.96.0.10", 80), ("fd00:10:96::10", 80))
KILLS = 8


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_killed_at_random_moments_no_connection_is_lost_and_the_last_state_arrives(
    node: LabNode, process: NodeProcess, mode: str
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    process.configure(mode=mode)
    process.objects(*WEB)
    with node.backend():
        process.start()
        for address, port in FRONTENDS:
            node.wait_served(address, port)
        with node.traffic(*FRONTENDS) as traffic:
            for number in range(KILLS):
                others = chance.sample(range(100, 250), chance.randrange(1, 40))
                extra = [item for n in others for item in (web_service(f"s{n}", n), *web_slices(f"s{n}"))]
                process.objects(*WEB, *extra)
                time.sleep(chance.uniform(0, 0.7 if number else 1.5))
                process.stop(signal.SIGKILL)
                process.start()
            last = web_service("last", 77)
            process.objects(*WEB, last, *web_slices("last"))
            process.wait_synced()
            node.wait_served("10.96.0.77")
            traffic.more(20)
        assert traffic.failures == [], f"seed {seed}"
        assert traffic.made > 50
        wait_until(lambda: _foreign(node, mode), lambda found: not found)


def _foreign(node: LabNode, mode: str) -> list[str]:
    """Services of the past that the kernel still knows."""
    if mode == "nftables":
        listing = node.run("nft", "list", "table", "ip", "kube-proxy")
    else:
        listing = node.run("iptables-save")
    return [line for line in listing.splitlines() if "default/s1" in line or "default/s2" in line]
