"""Timeouts of tracked flows per Service: what connection tracking holds, and what has expired while other flows have not."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.harness import lab as harness
from tests.harness.waiting import wait_until
from tests.harness.world import World, answers, running

from pointsman.lab.objects import LabService, backends
from pointsman.lab.proxy import LabProxy, configuration, pointsman_command

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
    pytest.mark.skipif(bool(harness.REFERENCE), reason="kube-proxy has no such annotation"),
    pytest.mark.skipif(shutil.which("conntrack") is None, reason="needs conntrack: run scripts/packages"),
]

UDP, TCP = "pointsman.dev/udp-timeout", "pointsman.dev/tcp-established-timeout"
PLACES = ("cluster", "nodeport", "lb", "external")
SHORT = LabService(
    *("short", 1, backends("pod1", "pod4")),
    type="LoadBalancer",
    external=True,
    protocols=("TCP", "UDP"),
    annotations={UDP: "4s", TCP: "2h"},
)
USUAL = LabService("usual", 2, backends("pod1", "pod4"), protocols=("TCP", "UDP"))
VARIANTS = {
    "random": SHORT,
    "local": msgspec.structs.replace(SHORT, external_policy="Local"),
    "affinity": msgspec.structs.replace(SHORT, affinity_seconds=600),
    "hash": msgspec.structs.replace(
        SHORT, annotations={**SHORT.annotations, "pointsman.dev/scheduler": "source-hash"}
    ),
}
EXPIRES = re.compile(
    r"^(tcp|udp)\s+\d+ (\d+) (?:ESTABLISHED )?src=\S+ dst=(\S+) sport=\d+ dport=(\d+)", re.MULTILINE
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("timeouts"), "nftables") as made:
        yield made


def list_flows(world: World, service: LabService, protocol: str) -> list[int]:
    """Return the seconds that the flows to the cluster IPs and node port of a Service have left."""
    addresses = {service.address(kind, family) for kind in ("cluster", "lb", "external") for family in (4, 6)}
    listed = "".join(
        world.cluster["n1"].run(("conntrack", "-L", "-f", family, "-p", protocol))
        for family in ("ipv4", "ipv6")
    )
    return [
        int(seconds)
        for _, seconds, destination, port in EXPIRES.findall(listed)
        if destination in addresses or port == str(service.node_port)
    ]


@pytest.mark.parametrize("service", VARIANTS.values(), ids=VARIANTS.keys())
def test_flows_of_a_service_expire_after_its_timeout_and_others_do_not(
    world: World, service: LabService
) -> None:
    world.cluster["n1"].run(("conntrack", "-F"))
    world.proxy.apply([service, USUAL])
    with (
        world.flows("client", service, *PLACES, protocol="UDP") as short,
        world.flows("client", USUAL, "cluster", protocol="UDP") as usual,
        world.flows("client", service, *PLACES) as connections,
        world.flows("client", USUAL, "cluster") as long,
    ):
        for flows in (short, usual, connections, long):
            assert set(answers(flows).values()) <= {"pod1", "pod4"}
        left = list_flows(world, service, "udp")
        assert len(left) == len(short)
        assert max(left) <= 4
        assert min(list_flows(world, USUAL, "udp")) > 4
        left = list_flows(world, service, "tcp")
        assert len(left) == len(connections)
        assert all(7000 < seconds <= 7200 for seconds in left)
        assert min(list_flows(world, USUAL, "tcp")) > 7200
        wait_until(lambda: list_flows(world, service, "udp"), lambda found: not found, seconds=15)
        assert len(list_flows(world, USUAL, "udp")) == len(usual)
        assert set(answers(short).values()) <= {"pod1", "pod4"}, "a flow that has expired begins anew"


def test_packets_in_time_keep_a_flow(world: World) -> None:
    world.proxy.apply([SHORT])
    with world.flows("pod3", SHORT, "cluster", protocol="UDP") as flows:
        first = answers(flows)
        for _ in range(4):
            time.sleep(2)
            assert answers(flows) == first
            assert len(list_flows(world, SHORT, "udp")) >= len(flows)


def test_a_timeout_can_be_changed_and_removed_and_leaves_nothing(world: World) -> None:
    for requested, wanted in (
        ({UDP: "4s"}, ["udp-timeout-4"]),
        ({UDP: "9s"}, ["udp-timeout-9"]),
        ({}, []),
    ):
        changed = msgspec.structs.replace(SHORT, annotations=requested)
        world.proxy.apply([changed])
        assert world.answerers("pod3", changed) == {"pod1", "pod4"}
        listed = world.cluster["n1"].run(("nft", "list", "table", "ip", "kube-proxy"))
        used = set(re.findall(r" : goto (udp-timeout-\d+)-", listed))
        assert sorted(used) == wanted
        assert "KernelDiffers" not in world.proxy.log_text


def test_a_restart_keeps_the_timeouts_of_open_flows(world: World) -> None:
    world.proxy.apply([SHORT])
    with world.flows("client", SHORT, "cluster") as connections:
        answers(connections)
        world.proxy.stop()
        world.proxy.start()
        world.proxy.apply([SHORT])
        answers(connections)
        left = list_flows(world, SHORT, "tcp")
        assert len(left) == len(connections)
        assert max(left) <= 7200


def test_dns_has_a_default(tmp_path: Path) -> None:
    dns = LabService("dns", 1, backends("pod1"), ports=(53, 54), protocols=("UDP",))
    with harness.build_lab() as cluster, contextlib.ExitStack() as stack:
        proxy = LabProxy(
            cluster, tmp_path, lambda *files: (*pointsman_command(*files), "--dns-udp-timeout=5s")
        )
        proxy.configure(configuration("nftables"))
        proxy.write([dns])
        proxy.start()
        stack.callback(proxy.stop)
        proxy.wait()
        world = World(cluster, proxy, "nftables")
        other_port = msgspec.structs.replace(dns, ports=(54,))
        flows = stack.enter_context(world.flows("pod3", dns, "cluster", protocol="UDP"))
        others = stack.enter_context(world.flows("pod3", other_port, "cluster", protocol="UDP"))
        for opened in (flows, others):
            assert set(answers(opened).values()) == {"pod1"}
        left = sorted(list_flows(world, dns, "udp"))
        assert len(left) == len(flows) + len(others)
        assert left[1] <= 5 < left[2]


def test_iptables_mode_says_that_it_cannot(tmp_path: Path) -> None:
    with (
        running(tmp_path, "iptables", [SHORT]) as world,
        world.flows("pod3", SHORT, "cluster", protocol="UDP") as flows,
    ):
        assert set(answers(flows).values()) <= {"pod1", "pod4"}
        assert min(list_flows(world, SHORT, "udp")) > 4
        assert "udp-timeout: not available in this proxy mode" in world.proxy.log_text
