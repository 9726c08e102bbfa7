"""Finding and deleting stale flows in a large conntrack table."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.kernel.conntrack_flows import add_flows

from pointsman.kernel.conntrack import ConntrackTable
from pointsman.kernel.tracked_flows import Flow, FlowQuery
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family
from pointsman.model.endpoint import Endpoint
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import EndpointSelection, Frontend, FrontendKind, Outcome, ServicePlan
from pointsman.model.service import Protocol, ServicePort, ServicePortName
from pointsman.obs.registry import Metrics
from pointsman.sync.flow_cleaner import StaleFlowCleaner
from pointsman.sync.reconcile import PlanChange

SERVICES = 100
PORT = 53


def address(family: Family, *numbers: int) -> bytes:
    return bytes(numbers) if family is Family.IPV4 else b"\xfd" + bytes(11) + bytes(numbers)


def service_address(family: Family, number: int) -> bytes:
    return address(family, 10, 96, number >> 8, number & 255)


def pod(family: Family, number: int) -> Endpoint:
    return Endpoint(address(family, 10, 244, 0, number), PORT)


def plan(family: Family, number: int, *pods: Endpoint, protocol: Protocol = Protocol.UDP) -> ServicePlan:
    name = ServicePortName("bench", f"s{number}", "", protocol)
    where = service_address(family, number)
    return ServicePlan(
        port=ServicePort(name, family, where, PORT),
        frontends=(Frontend(FrontendKind.CLUSTER_IP, where, PORT, False, Outcome.DELIVERED),),
        endpoints=EndpointSelection(pods, pods, (), pods, has_any=bool(pods)),
    )


def fill(family: Family, count: int, protocol: Protocol) -> None:
    """`count` flows spread over the services; each service has half of its flows on pod 1, half on pod 2.

    TCP flows are answered, but for about one in a hundred, which is neither answered nor translated.
    """
    flows = []
    for n in range(count):
        client = address(family, 10, 0, n // 60_000, 1)
        backend = pod(family, 1 + (n // SERVICES) % 2)
        service = service_address(family, n % SERVICES)
        lost = protocol is Protocol.TCP and n % 101 == 0
        flows.append(
            Flow(
                *(protocol.value, client, 1 + n % 60_000, service, PORT),
                *(service if lost else backend.address, backend.port, client, 1 + n % 60_000, b""),
                replied=protocol is Protocol.TCP and not lost,
            )
        )
    add_flows(family, flows)


def timed(label: str, action: Callable[[], object]) -> None:
    wall, cpu = time.perf_counter(), time.thread_time()
    result = action()
    print(
        f"  {label:<58} {time.perf_counter() - wall:8.3f} s {time.thread_time() - cpu:8.3f} s CPU  {result}"
    )


def cleaned(family: Family, changes: dict[ServicePortName, PlanChange], context: NodeContext) -> str:
    cleaner = StaleFlowCleaner(family, Metrics("nftables"), timeout=timedelta(seconds=60))
    cleaner.add(changes, context)
    report = cleaner.run()
    return report.problem or f"{report.deleted} deleted"


def measure(family: Family, count: int, services: int) -> None:
    context = NodeContext(family, "bench")
    both, second = (pod(family, 1), pod(family, 2)), pod(family, 2)
    print(f"{family.value}, {count} UDP flows")
    timed("fill the table", lambda: fill(family, count, Protocol.UDP))
    with ConntrackTable(family) as table:
        one = FlowQuery(17, service_address(family, 7), PORT)
        timed("list the flows of one frontend", lambda: len(table.list_flows(one, lambda *_: True)))
        timed(
            "walk over all flows, none wanted", lambda: len(table.list_flows(FlowQuery(17), lambda *_: False))
        )
    change = PlanChange(plan(family, 7, *both), plan(family, 7, second))
    timed(
        "one endpoint of one service gone", lambda: cleaned(family, {plan(family, 7).name: change}, context)
    )
    started = {
        entry.name: PlanChange(None, entry) for entry in (plan(family, n, *both) for n in range(services))
    }
    timed(f"restart, {services} UDP services, nothing stale", lambda: cleaned(family, started, context))
    moved = {
        entry.name: PlanChange(None, entry) for entry in (plan(family, n, second) for n in range(services))
    }
    timed("restart, half of all flows stale", lambda: cleaned(family, moved, context))


def measure_handshakes(family: Family, count: int, services: int) -> None:
    context = NodeContext(family, "bench")
    made = [plan(family, n, pod(family, 1), protocol=Protocol.TCP) for n in range(services)]
    print(f"{family.value}, {count} TCP flows")
    timed("fill the table", lambda: fill(family, count, Protocol.TCP))
    with ConntrackTable(family) as table:
        timed("walk over all flows", lambda: len(table.list_flows(FlowQuery(6), lambda *_: False)))
    one = made[7]
    timed("one service comes", lambda: cleaned(family, {one.name: PlanChange(None, one)}, context))
    started = {entry.name: PlanChange(None, entry) for entry in made}
    timed(f"restart, {services} TCP services", lambda: cleaned(family, started, context))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flows", type=int, default=100_000)
    parser.add_argument("--services", type=int, default=10_000)


def run(options: argparse.Namespace) -> Any:
    limit = int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text())
    count = min(options.flows, limit * 9 // 10)
    if count < options.flows:
        print(f"nf_conntrack_max is {limit}: measuring with {count} flows")
    for family in Family:
        for measured in (measure, measure_handshakes):
            space = Namespace()
            with space.entered():
                measured(family, count, options.services)
            space.close()
    return None
