"""A kernel that is busy or short of memory: the old rules serve, the new ones come when it lets them."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, NODE_IP6, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

from pointsman.kernel.rtnl import AddressMonitor, list_local_addresses
from pointsman.model.addresses import Family

pytestmark = needs_root

WEB = (web_service(), *web_slices(), node_object())
LATER = (web_service("later", 20), *web_slices("later"))


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    path.touch()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_held_xtables_lock_delays_a_change_and_loses_nothing(
    node: LabNode, process: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("iptables-legacy-restore"):
        pytest.skip("needs iptables-legacy: the nf_tables variant takes no lock")
    lock = tmp_path / "xtables.lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    process.configure(mode="iptables", iptables={"minSyncPeriod": "50ms", "syncPeriod": "1s"})
    process.objects(*WEB)
    with node.backend():
        node.run("iptables-legacy", "-t", "nat", "-N", "KUBE-IPTABLES-HINT")
        node.run("ip6tables-legacy", "-t", "nat", "-N", "KUBE-IPTABLES-HINT")
        node.run("iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
        process.start()
        node.wait_served("10.96.0.10")
        assert "KUBE-SVC" in node.run("iptables-legacy-save")
        with node.traffic(("10.96.0.10", 80)) as traffic:
            with _held(lock):
                process.objects(*WEB, *LATER)
                traffic.more(100)
                assert node.is_unreachable("10.96.0.20")
                wait_until(lambda: node.get("/livez", HEALTH_PORT).status == 503)
            node.wait_served("10.96.0.20")
            wait_until(lambda: node.get("/livez", HEALTH_PORT).status == 200)
        assert traffic.failures == []


def test_an_overrun_netlink_buffer_still_ends_in_the_right_addresses(node: LabNode) -> None:
    """Thousands of address changes while nobody reads: messages are lost, the outcome is not."""
    commands = "".join(
        f"addr {verb} 10.77.{third}.{fourth}/32 dev eth0\n"
        for third in range(8)
        for verb in ("add", "del", "add")
        for fourth in range(1, 255)
    )
    with node.namespace.entered():
        before = len(list_local_addresses(Family.IPV4))
        monitor = AddressMonitor()
        try:
            node.run("ip", "-batch", "-", text=commands)
            assert monitor.drain()
            assert not monitor.drain()
            assert len(list_local_addresses(Family.IPV4)) == 8 * 254 + before
        finally:
            monitor.close()


def test_a_process_sees_addresses_that_came_in_a_flood(node: LabNode, process: NodeProcess) -> None:
    node_port = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}
    web = web_service(type="NodePort", ports=[node_port])
    process.configure(nodePortAddresses=["10.77.0.0/16"])
    process.objects(web, *WEB[1:])
    commands = "".join(
        f"addr {verb} 10.77.{third}.{fourth}/32 dev eth0\n"
        for third in range(4)
        for verb in ("add", "del", "add")
        for fourth in range(1, 255)
    )
    with node.backend():
        process.start()
        node.wait_served("10.96.0.10")
        with node.traffic(("10.96.0.10", 80)) as traffic:
            node.run("ip", "-batch", "-", text=commands)
            node.wait_served("10.77.3.254", 30080)
            node.wait_served("10.77.0.1", 30080)
            node.run("ip", "addr", "del", "10.77.0.1/32", "dev", "eth0")
            wait_until(
                lambda: "10.77.0.1," not in node.run("nft", "list", "set", "ip", "kube-proxy", "nodeport-ips")
            )
        assert traffic.failures == []


def test_rules_that_somebody_takes_away_come_back_every_time(node: LabNode, process: NodeProcess) -> None:
    process.objects(*WEB)
    with node.backend():
        process.start()
        node.wait_served("10.96.0.10")
        for _ in range(3):
            node.run("nft", "flush", "ruleset")
            node.wait_served("10.96.0.10")
            node.wait_served("fd00:10:96::10")
        assert node.metric("pointsman_drift_repaired_total") >= 3


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_an_ip_family_that_disappears_leaves_the_other_served_and_comes_back(
    node: LabNode, process: NodeProcess, mode: str
) -> None:
    process.configure(mode=mode)
    process.objects(*WEB)
    with node.backend():
        process.start()
        node.wait_served("10.96.0.10")
        node.wait_served("fd00:10:96::10")
        node.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        process.objects(*WEB, *LATER)
        node.wait_served("10.96.0.20")
        assert node.get("/livez", HEALTH_PORT).status == 200
        node.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0")
        node.run("ip", "address", "add", f"{NODE_IP6}/64", "dev", "eth0", "nodad")
        node.run("ip", "-6", "route", "add", "default", "dev", "eth0")
        node.wait_served("fd00:10:96::20")
