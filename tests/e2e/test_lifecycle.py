"""Start, stop, crash, takeover, mode switch, damage and cleanup, with connections running all the time."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness import lab as harness
from tests.harness.waiting import wait_until
from tests.harness.world import FAMILIES, World, running

from pointsman.lab.objects import LabService, backends
from pointsman.lab.probe import Probe, TrafficGenerator
from pointsman.lab.proxy import configuration, pointsman_command

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]
ours_only = pytest.mark.skipif(bool(harness.REFERENCE), reason="kube-proxy does less here")

MODES = ("nftables", "iptables")
WEB = LabService(
    *("web", 1, backends("pod1", "pod2", "pod4")),
    type="LoadBalancer",
    external=True,
)
LATER = LabService("later", 2, backends("pod5"))
UPSTREAM_TABLE = Path(__file__).parent / "data" / "kube-proxy-table.nft"
"""What kube-proxy's nftables mode programs for WEB."""


@pytest.fixture(scope="module", params=MODES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    mode = request.param
    with running(tmp_path_factory.mktemp("lifecycle"), mode, [WEB], **_patient(mode)) as made:
        yield made


def _patient(mode: str) -> dict[str, Any]:
    return {mode: {"syncPeriod": "2s"}}


def _traffic(world: World) -> list[Probe]:
    return [
        world.probe(host, WEB, to, family)
        for family in FAMILIES
        for host, to in (("pod3", "cluster"), ("client", "nodeport"), ("client", "lb"), ("n1", "cluster"))
    ]


def _serving(world: World) -> bool:
    return world.answerers("client", WEB, "lb") == world.answerers("pod3", WEB) == {"pod1", "pod2", "pod4"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_a_restart_loses_no_connection_and_no_change(world: World, number: signal.Signals) -> None:
    world.proxy.apply([WEB])
    with TrafficGenerator(world.cluster, _traffic(world)) as traffic:
        world.proxy.stop(number)
        before = traffic.made
        world.proxy.write([WEB, LATER])
        wait_until(lambda: traffic.made, lambda made: made > before + 200)
        world.proxy.start()
        world.proxy.wait()
        before = traffic.made
        wait_until(lambda: traffic.made, lambda made: made > before + 200)
    assert traffic.failures == []
    assert world.answerers("pod3", LATER, count=5) == {"pod5"}


def test_changes_of_other_services_disturb_no_connection(world: World) -> None:
    world.proxy.apply([WEB])
    with TrafficGenerator(world.cluster, _traffic(world)) as traffic:
        for members in (("pod1",), ("pod1", "pod5"), ("pod4",), ()):
            world.proxy.apply([WEB, msgspec.structs.replace(LATER, backends=backends(*members))])
    assert traffic.failures == []
    assert traffic.made > 100


def test_adding_and_removing_an_endpoint_disturbs_no_connection(world: World) -> None:
    world.proxy.apply([WEB])
    with TrafficGenerator(world.cluster, _traffic(world)) as traffic:
        for members in (("pod1", "pod2"), ("pod1", "pod2", "pod4", "pod5"), ("pod5", "pod1")):
            world.proxy.apply([msgspec.structs.replace(WEB, backends=backends(*members))])
    assert traffic.failures == []
    assert traffic.made > 100


@ours_only
def test_rules_removed_by_somebody_else_come_back(world: World) -> None:
    world.proxy.apply([WEB])
    assert _serving(world)
    world.destroy_rules()
    assert wait_until(lambda: _serving(world), bool, seconds=15)


@ours_only
def test_a_damaged_table_is_repaired(tmp_path: Path) -> None:
    with running(tmp_path, "nftables", [WEB]) as world:
        node = world.cluster["n1"]
        for family in ("ip", "ip6"):
            node.run(("nft", "flush", "table", family, "kube-proxy"))
        assert wait_until(lambda: _serving(world), bool, seconds=15)


@ours_only
def test_the_table_of_kube_proxy_is_taken_over_without_losing_a_connection(tmp_path: Path) -> None:
    with harness.build_lab() as cluster, harness.prepare_proxy(cluster, tmp_path, "nftables") as proxy:
        world = World(cluster, proxy, "nftables")
        node = cluster["n1"]
        node.run(("nft", "-f", str(UPSTREAM_TABLE)))
        assert _serving(world)
        # The recorded table answers for the first beacon; only the second shows that the new proxy is at work.
        proxy.write([WEB])
        proxy.write([WEB])
        with TrafficGenerator(cluster, _traffic(world)) as traffic:
            proxy.start()
            proxy.wait()
        assert traffic.failures == []
        assert _serving(world)
        for family in ("ip", "ip6"):
            assert "lab/web" not in _service_chains(node.run(("nft", "list", "table", family, "kube-proxy")))


def _service_chains(listing: str) -> str:
    """Lines that open a chain of kube-proxy's layout, which has chains per service."""
    return "\n".join(line for line in listing.splitlines() if line.lstrip().startswith("chain service-"))


@ours_only
@pytest.mark.parametrize(("first", "second"), [MODES, MODES[::-1]], ids=["to-iptables", "to-nftables"])
def test_a_switch_of_the_mode_loses_no_connection(tmp_path: Path, first: str, second: str) -> None:
    with (
        running(tmp_path, first, [WEB]) as world,
        TrafficGenerator(world.cluster, _traffic(world)) as traffic,
    ):
        world.proxy.stop()
        world.proxy.write([WEB, LATER])
        world.proxy.configure(configuration(second))
        world.proxy.start()
        world.proxy.wait()
        assert wait_until(lambda: _not_shared(_leftovers(world, first)), lambda found: not found) == []
        assert _serving(world)
    assert traffic.failures == []


def _not_shared(leftovers: list[str]) -> list[str]:
    """Without the chain that the kubelet makes too, which a switch of the mode therefore leaves."""
    return [line for line in leftovers if "KUBE-FIREWALL" not in line]


@ours_only
@pytest.mark.parametrize("mode", MODES)
def test_cleanup_leaves_nothing_and_may_run_twice(tmp_path: Path, mode: str) -> None:
    with running(tmp_path, mode, [WEB]) as world:
        assert _leftovers(world, mode)
        world.proxy.stop()
        for _ in range(2):
            command = (*pointsman_command(tmp_path / "config.yaml", tmp_path / "manifests"), "--cleanup")
            with world.cluster["n1"].entered():
                done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert _leftovers(world, mode) == []
        assert world.answerers("client", WEB, "nodeport", 2) == {"refused"}


def _leftovers(world: World, mode: str) -> list[str]:
    """What a mode has in the kernel of n1."""
    node = world.cluster["n1"]
    if mode == "nftables":
        return [line for line in node.run(("nft", "list", "tables")).splitlines() if "kube-proxy" in line]
    return [
        line
        for tool in ("iptables-save", "ip6tables-save")
        for line in node.run((tool,)).splitlines()
        if "KUBE-" in line
    ]
