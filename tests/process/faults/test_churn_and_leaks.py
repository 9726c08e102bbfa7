"""Thousands of changes per second and many restarts: no connection lost, memory flat, nothing left open."""

from __future__ import annotations

import time
from functools import partial

import pytest
from tests import factory
from tests.harness.api_thread import ApiThread
from tests.harness.assembled import Assembly, assembled
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, NODE_IP, LabNode, NodeProcess, needs_root
from tests.harness.waiting import async_wait_until, wait_until
from tests.process.faults.churn import flood, slice_line

from pointsman.conditions import Blocks
from pointsman.model.addresses import Family

CHURN_SECONDS = 4.0
EVENTS_PER_SECOND = 4000
ALLOWED_GROWTH_KILOBYTES = 8 * 1024
RESTARTS = 8
WARM_UP = 4
"""Restarts until every mode and option was used once; what these load stays."""
REST_SAMPLES = 20


@pytest.mark.kernel
@needs_root[1]
def test_a_flood_of_changes_costs_no_connection_and_no_memory(
    node: LabNode, process: NodeProcess, api: ApiThread
) -> None:
    busy = [f"busy-{number}" for number in range(40)]
    api.load(node_object(), web_service(), *web_slices())
    for number, name in enumerate(busy, start=100):
        api.load(web_service(name, number), *web_slices(name))
    client = {"kubeconfig": str(api.kubeconfig), "contentType": "application/json", "qps": 500, "burst": 500}
    process.configure(clientConnection=client)
    with node.backend():
        process.start(from_api=True)
        process.wait_synced()
        node.wait_served("10.96.0.10")
        sent = 0
        for sent in flood(api, busy, 1.0, EVENTS_PER_SECOND, 100_000):  # noqa: B007
            pass
        _caught_up(node, sent)
        before = process.resident_kilobytes()
        with node.traffic(("10.96.0.10", 80), ("fd00:10:96::10", 80)) as traffic:
            warm = sent
            for sent in flood(api, busy, CHURN_SECONDS, EVENTS_PER_SECOND, 500_000):  # noqa: B007
                pass
            _caught_up(node, warm + sent)
            last = slice_line("busy-0", 900_000, NODE_IP)
            api.call(lambda server: server.send_raw("EndpointSlice", last))
            node.wait_served("10.96.0.100")
        assert traffic.failures == []
        assert process.resident_kilobytes() - before < ALLOWED_GROWTH_KILOBYTES
        assert node.get("/healthz", HEALTH_PORT).status == 200


def _caught_up(node: LabNode, events: int) -> None:
    name = "kubeproxy_sync_proxy_rules_endpoint_changes_total"
    wait_until(lambda: node.metric(name), lambda seen: seen >= events, seconds=120)


@pytest.mark.kernel
@needs_root[1]
def test_restarts_inside_the_process_leave_nothing_open(node: LabNode, process: NodeProcess) -> None:
    process.objects(web_service(), *web_slices(), node_object())

    def restart(number: int) -> None:
        process.configure(
            mode=("nftables", "iptables")[number % 2],
            enableProfiling=number % 4 < 2,
        )
        wait_until(lambda: _finished(process), lambda count: count == number, seconds=30)
        assert node.metric("pointsman_config_reloads_total", result="restarted") == number

    def wait_host_checked() -> None:
        """The first round of checks opens what it keeps."""
        rounds = node.metric("pointsman_host_checks_total")
        wait_until(lambda: node.metric("pointsman_host_checks_total") > rounds)

    with node.backend():
        process.start()
        process.wait_synced()
        for number in range(1, 1 + WARM_UP):
            restart(number)
        wait_host_checked()
        before = _at_rest(process)
        with node.traffic(("10.96.0.10", 80)) as traffic:
            for number in range(1 + WARM_UP, 1 + WARM_UP + RESTARTS):
                restart(number)
        assert traffic.failures == []
        wait_host_checked()
        after = _at_rest(process)
        assert after[:2] == before[:2]
        assert after[2] - before[2] < 1024
        assert process.stop() == 0
        assert "Traceback" not in process.log_text


def _finished(process: NodeProcess) -> int:
    """How many restarts are over: the last thing each does is to remove the other mode's rules by programs."""
    runs = process.log_text.split('"Starting"')[2:]
    return sum('"Leftover of another proxy mode"' in run for run in runs)


def _at_rest(process: NodeProcess) -> tuple[int, int, int]:
    """Return the fewest descriptors and threads of some seconds, and memory.

    A leak is in every sample. Requests, checks of the host and samples of the traffic open descriptors for a moment only.
    """
    samples = []
    for _ in range(REST_SAMPLES):
        samples.append((process.descriptors(), process.threads()))
        time.sleep(0.25)
    descriptors, threads = zip(*samples, strict=True)
    return min(descriptors), min(threads), process.resident_kilobytes()


def _serves(world: Assembly, number: int) -> bool:
    return any(
        endpoint.address[-1] == number
        for plan in world.backends[Family.IPV4].programmed.values()
        for endpoint in plan.endpoints.cluster
    )


async def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    offset = [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])

    async with assembled() as world:
        world.source.put(
            factory.service(), factory.node(addresses=[{"type": "InternalIP", "address": "172.30.0.10"}])
        )
        world.source.listed()
        await world.settled()
        for number, jump in enumerate((-86_400.0, 10 * 365 * 86_400.0, -1e9), start=1):
            offset[0] = jump
            trigger = {
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"}
            }
            world.source.put(factory.endpoint_slice(f"10.244.1.{number}", metadata=trigger))
            await async_wait_until(partial(_serves, world, number))
            assert not world.board.blocking(Blocks.TRAFFIC)
        for line in world.metrics.render().decode().splitlines():
            if "_seconds_sum" in line and not line.startswith("#"):
                assert float(line.split()[-1]) >= 0, line
