"""Flows that the kernel remembers from before their Service: the proxy makes room for a new beginning."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.harness import lab as harness
from tests.harness.flows import Flow
from tests.harness.waiting import wait_until
from tests.harness.world import FAMILIES, World, answers, running, wait_answers
from tests.kernel.conntrack_flows import add_flows

from pointsman.kernel.conntrack import ConntrackTable
from pointsman.kernel.tracked_flows import Flow as TrackedFlow
from pointsman.kernel.tracked_flows import FlowQuery
from pointsman.lab.hosts import HOSTS
from pointsman.lab.objects import LabService, backends, node_manifest
from pointsman.lab.probe import Outcome, Probe, run_probes
from pointsman.model.addresses import Family

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

ours_only = pytest.mark.skipif(bool(harness.REFERENCE), reason="kube-proxy leaves TCP flows as they are")

WEB = LabService(
    *("web", 1, backends("pod1")),
    type="LoadBalancer",
    external=True,
    protocols=("TCP", "UDP"),
)
NODES = [node_manifest("n1"), node_manifest("n2")]
"""Without a service range: in nftables mode packets to an address in it go nowhere and leave no trace."""
LONGEST_WAIT = 20.0
"""A SYN is sent again after 1, 3, 7 and 15 seconds."""


@pytest.fixture(scope="module", params=harness.MODES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("early"), request.param) as made:
        yield made


def tracked(world: World, *queries: FlowQuery) -> list[TrackedFlow]:
    """The flows that n1 knows, of both families."""
    found: list[TrackedFlow] = []
    with world.cluster["n1"].entered():
        for family in Family:
            with ConntrackTable(family) as table:
                for query in queries:
                    found += table.list_flows(query, lambda *_: True)
    return found


class Connecting:
    """Connections that are being made on a thread of their own while the test goes on."""

    def __init__(self, world: World, probes: list[Probe]) -> None:
        self.outcomes: list[Outcome] = []
        self._thread = threading.Thread(target=self._run, args=(world, probes), daemon=True)
        self._thread.start()

    def _run(self, world: World, probes: list[Probe]) -> None:
        self.outcomes = run_probes(world.cluster, probes, LONGEST_WAIT)

    def ended(self) -> list[Outcome]:
        self._thread.join()
        return self.outcomes


@ours_only
def test_a_connection_begun_before_its_service_is_served_by_it(world: World) -> None:
    """The first SYN went astray and is remembered so; those sent again must not follow it."""
    world.proxy.apply([], NODES)
    probes = [
        world.probe(host, WEB, to, family)
        for family in FAMILIES
        for host in ("client", "pod3", "n1")
        for to in ("cluster", "lb", "external")
    ]
    connecting = Connecting(world, probes)
    astray = FlowQuery(6, None, 80, unreplied=True)
    assert wait_until(lambda: len(tracked(world, astray)), lambda seen: seen == len(probes)) == len(probes)
    world.proxy.apply([WEB], NODES)
    assert [str(outcome.by or outcome.kind) for outcome in connecting.ended()] == ["pod1"] * len(probes)


@ours_only
def test_a_connection_begun_before_there_was_a_local_endpoint_is_served_by_it(world: World) -> None:
    local = LabService("web", 1, backends("pod4"), type="LoadBalancer", external_policy="Local")
    probes = [world.probe("client", local, "lb", family) for family in FAMILIES]
    world.proxy.apply([], NODES)
    connecting = Connecting(world, probes)
    astray = FlowQuery(6, None, 80, unreplied=True)
    wait_until(lambda: len(tracked(world, astray)), lambda seen: seen == len(probes))
    world.proxy.apply([local], NODES)
    world.proxy.apply([msgspec.structs.replace(local, backends=backends("pod4", "pod2"))], NODES)
    assert {str(outcome.by or outcome.kind) for outcome in connecting.ended()} == {"pod2"}


def test_a_connection_that_a_real_host_answers_goes_on_when_a_service_takes_the_address(world: World) -> None:
    """Not translated, but answered: such a flow is somebody's connection."""
    world.proxy.apply([], NODES)
    owner = world.cluster["n2"]
    for family in FAMILIES:
        address, length = WEB.address("external", family), 32 if family == 4 else 128
        owner.run(
            ("ip", "addr", "add", f"{address}/{length}", "dev", "lo", *(["nodad"] if family == 6 else []))
        )
        via = HOSTS["n2"].address(family)
        world.cluster["n1"].run(("ip", "route", "add", f"{address}/{length}", "via", via))
    with owner.entered():
        for family in FAMILIES:
            owner.wait_for_address(WEB.address("external", family))
        world.cluster.servers.listen("owner", [WEB.address("external", f) for f in FAMILIES], 80)
    flows = [Flow(world.cluster, world.probe("client", WEB, "external", family)) for family in FAMILIES]
    assert {flow.ask().by for flow in flows} == {"owner"}
    world.proxy.apply([WEB], NODES)
    assert world.answerers("client", WEB, "external", 5) == {"pod1"}
    assert {flow.ask().by for flow in flows} == {"owner"}
    for flow in flows:
        flow.close()


def by_hand(source_port: int, answering: str = "") -> dict[Family, TrackedFlow]:
    """A UDP flow from the client to the cluster IP in both families; not translated unless a host is named."""
    made = {}
    for number, family in zip(FAMILIES, Family, strict=True):
        client, service = packed(HOSTS["client"].address(number)), packed(WEB.address("cluster", number))
        by, port = (packed(HOSTS[answering].address(number)), 8080) if answering else (service, 80)
        made[family] = TrackedFlow(17, client, source_port, service, 80, by, port, client, source_port, b"")
    return made


def packed(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def insert(world: World, *flows: dict[Family, TrackedFlow]) -> None:
    with world.cluster["n1"].entered():
        for entry in flows:
            for family, flow in entry.items():
                add_flows(family, [flow])


def remaining(world: World) -> set[int]:
    return {flow.source_port for flow in tracked(world, FlowQuery(17, None, 80))}


def test_an_untranslated_flow_put_into_the_kernel_by_hand_goes_with_the_next_change_of_endpoints(
    world: World,
) -> None:
    world.proxy.apply([WEB])
    insert(world, by_hand(1001), by_hand(1002, "pod1"))
    world.proxy.apply([msgspec.structs.replace(WEB, backends=backends("pod1", "pod4"))])
    assert wait_until(lambda: remaining(world), lambda seen: 1001 not in seen) == {1002}


def test_flows_made_before_the_proxy_started_are_checked_when_it_starts(world: World) -> None:
    world.proxy.apply([WEB])
    world.proxy.stop()
    insert(world, by_hand(1003), by_hand(1004, "pod1"), by_hand(1005, "pod4"))
    world.proxy.start()
    world.proxy.write([WEB])
    world.proxy.wait()
    assert wait_until(lambda: remaining(world) - {1002}, lambda seen: seen == {1004}) == {1004}


@ours_only
@pytest.mark.parametrize("mode", harness.MODES)
def test_a_udp_client_of_a_node_port_is_answered_when_a_floating_address_comes_to_this_node(
    tmp_path: Path, mode: str
) -> None:
    """While the address was elsewhere, its flow began untranslated; no rule changes when the address comes."""
    floating = {4: "172.30.0.200", 6: "fd00:30::200"}
    with (
        running(tmp_path, mode, [WEB], nodePortAddresses=["0.0.0.0/0", "::/0"]) as world,
        contextlib.ExitStack() as closing,
    ):
        flows = {}
        for family, address in floating.items():
            _hold(world, "n2", address)
            probe = Probe("pod3", address, WEB.node_port, "UDP")
            flows[f"v{family}"] = Flow(world.cluster, probe)
            closing.callback(flows[f"v{family}"].close)
        assert "pod1" not in answers(flows).values()
        for address in floating.values():
            _hold(world, "n1", address)
        wait_answers(flows, "pod1")


def _hold(world: World, host: str, address: str) -> None:
    """Give an address to this host."""
    command = ("ip", "address", "replace", f"{address}/{'128' if ':' in address else '32'}", "dev", "eth0")
    world.cluster[host].run((*command, *(("nodad",) if ":" in address else ())))
