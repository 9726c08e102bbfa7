"""Faults of the node around the proxy: each is made, seen as a condition, removed, and seen no more."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import node_object, service_cidr, web_service, web_slices
from tests.harness.node import HEALTH_PORT, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

from pointsman.lab.netns import Namespace

pytestmark = needs_root

PODS = ("10.244.1.10", "fd00:10:244:1::10", "10.244.2.10", "fd00:10:244:2::10")


class Watched:
    """A process with pods behind a Service, and what it says about its node."""

    def __init__(self, node: LabNode, process: NodeProcess, control: Path) -> None:
        self.node, self.process, self.control = node, process, control
        for pod_range in ("10.244.2.0/24", "fd00:10:244:2::/64"):
            node.run("ip", "route", "replace", pod_range, "dev", "eth0")

    def start(
        self, *flags: str, objects: tuple[dict[str, Any], ...] = (), wrap: tuple[str, ...] = ()
    ) -> None:
        self.process.objects(*(objects or (web_service(), *web_slices("web", *PODS), node_object())))
        self.process.start(f"--control-socket={self.control}", *flags, wrap=wrap)
        self.process.wait_synced()
        self.wait_clear()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pointsman", *arguments, f"--control-socket={self.control}"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def failing(self) -> dict[str, dict[str, Any]]:
        """Return the conditions that are false, by type."""
        status = json.loads(self.command("status", "-o", "json").stdout)
        return {one["type"]: one for one in status["conditions"] if one["status"] == "False"}

    def wait_raised(self, type_: str) -> dict[str, Any]:
        return wait_until(self.failing, lambda found: type_ in found)[type_]

    def wait_clear(self) -> None:
        wait_until(self.failing, lambda found: not found, seconds=60)

    def wait_checked(self) -> None:
        """Wait until two rounds of checks have begun and ended, which is when a fault counts."""
        before = self.rounds()
        wait_until(self.rounds, lambda rounds: rounds >= before + 3)

    def rounds(self) -> float:
        return self.node.metric("pointsman_host_checks_total")

    def states(self) -> dict[str, str]:
        ports = json.loads(self.command("list", "-o", "json").stdout)["ports"]
        return {port["family"]: port["state"] for port in ports}

    def assert_not_ready(self, type_: str, reason: str) -> None:
        answer = self.node.get("/readyz", HEALTH_PORT)
        assert answer.status == 503
        assert f"[-]{type_} failed: " in answer.body
        assert self.node.metric("pointsman_condition", type=type_, reason=reason) == 1
        assert self.command("status").returncode == 1
        assert self.node.get("/livez", HEALTH_PORT).status == 200


@pytest.fixture
def watched(node: LabNode, process: NodeProcess, tmp_path: Path) -> Watched:
    return Watched(node, process, tmp_path / "control.sock")


@pytest.mark.parametrize(
    ("family", "setting"), [("IPv4", "net.ipv4.ip_forward"), ("IPv6", "net.ipv6.conf.all.forwarding")]
)
def test_forwarding_that_is_off_is_named(watched: Watched, family: str, setting: str) -> None:
    watched.start()
    assert watched.states() == {"IPv4": "healthy", "IPv6": "healthy"}
    watched.node.run("sysctl", "-w", f"{setting}=0")
    found = watched.wait_raised(f"Forwarding{family}")
    assert f"{setting} is 0" in found["message"]
    assert f"sysctl -w {setting}=1" in found["remedy"]
    watched.assert_not_ready(f"Forwarding{family}", "ForwardingOff")
    assert watched.states()[family] == "partial", "the node itself still reaches the pods"
    watched.node.run("sysctl", "-w", f"{setting}=1")
    watched.wait_clear()
    assert watched.node.get("/readyz", HEALTH_PORT).status == 200
    assert watched.states()[family] == "healthy"


def test_an_interface_that_does_not_forward_is_named_where_it_decides(watched: Watched) -> None:
    watched.start()
    watched.node.run("sysctl", "-w", "net.ipv4.conf.cni0.forwarding=0")
    found = watched.wait_raised("ForwardingIPv4")
    assert (found["reason"], "cni0" in found["message"]) == ("InterfaceNotForwarding", True)
    watched.node.run("sysctl", "-w", "net.ipv4.conf.cni0.forwarding=1")
    watched.wait_clear()


def test_forwarding_does_not_matter_where_every_endpoint_is_the_node(watched: Watched) -> None:
    watched.node.run("sysctl", "-w", "net.ipv4.ip_forward=0")
    watched.start(objects=(web_service(), *web_slices(), node_object()))
    watched.wait_checked()
    assert watched.failing() == {}


DROPS_ALL = {
    "policy": "table inet firewall { chain fw { type filter hook forward priority 0; policy drop; ct state established accept; tcp dport 22 accept; }; }",
    "rule": "table inet firewall { chain fw { type filter hook forward priority 0; counter drop; }; }",
    "last rule": "table inet firewall { chain fw { type filter hook forward priority 0; ip daddr 192.0.2.1 accept; ip6 daddr 2001:db8::1 accept; reject; }; }",
    "jump": "table inet firewall { chain deny { drop; }; chain fw { type filter hook forward priority 0; jump deny; }; }",
}
DROPS_SOME = {
    "policy with an exception": "table inet firewall { chain fw { type filter hook forward priority 0; policy drop; iifname cni0 accept; }; }",
    "one pod": "table inet firewall { chain fw { type filter hook forward priority 0; ip daddr 10.244.1.10 drop; }; }",
    "all pods": "table inet firewall { chain fw { type filter hook forward priority 0; ip daddr 10.244.0.0/16 drop; }; }",
    "translated accepted": "table inet firewall { chain fw { type filter hook forward priority 0; policy drop; ct status dnat accept; }; }",
    "another hook": "table inet firewall { chain fw { type filter hook input priority 0; policy drop; iif lo accept; }; }",
}


@pytest.mark.parametrize("rules", DROPS_ALL.values(), ids=DROPS_ALL)
def test_a_foreign_chain_that_drops_everything_is_named(watched: Watched, rules: str) -> None:
    watched.start()
    watched.node.run("nft", "-f", "-", text=rules)
    found = watched.wait_raised("ForeignRulesIPv4")
    assert "chain fw of table inet firewall (forward, priority 0)" in found["message"]
    assert "nft list chain inet firewall fw" in found["remedy"]
    watched.assert_not_ready("ForeignRulesIPv4", "ForeignDrop")
    assert watched.states() == {"IPv4": "partial", "IPv6": "partial"}
    watched.node.run("nft", "delete", "table", "inet", "firewall")
    watched.wait_clear()
    assert watched.states() == {"IPv4": "healthy", "IPv6": "healthy"}


def test_chains_that_drop_by_condition_are_not_reported(watched: Watched) -> None:
    watched.start()
    for rules in DROPS_SOME.values():
        watched.node.run("nft", "-f", "-", text=rules)
        watched.wait_checked()
        assert watched.failing() == {}, rules
        watched.node.run("nft", "delete", "table", "inet", "firewall")


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_an_iptables_chain_that_drops_everything_is_named(watched: Watched, variant: str) -> None:
    watched.start()
    program = f"iptables-{variant}"
    watched.node.run(program, "-P", "FORWARD", "DROP")
    found = watched.wait_raised("ForeignRulesIPv4")
    assert "its policy is drop" in found["message"]
    watched.node.run(program, "-P", "FORWARD", "ACCEPT")
    watched.wait_clear()


def test_a_service_that_no_client_reaches_is_down(watched: Watched) -> None:
    watched.start()
    watched.node.run("sysctl", "-w", "net.ipv4.ip_forward=0")
    rules = "table ip firewall { chain out { type filter hook output priority 0; policy drop; }; }"
    watched.node.run("nft", "-f", "-", text=rules)
    found = watched.wait_raised("ForeignRulesIPv4")
    assert "(output, priority 0)" in found["message"]
    wait_until(lambda: watched.states()["IPv4"], lambda state: state == "down")
    watched.node.run("nft", "delete", "table", "ip", "firewall")
    watched.node.run("sysctl", "-w", "net.ipv4.ip_forward=1")
    watched.wait_clear()


def test_a_wrong_node_name_is_named_with_similar_ones(watched: Watched, api: ApiThread) -> None:
    api.load(web_service(), *web_slices(), service_cidr("kubernetes", "10.96.0.0/12"))
    api.load(node_object(name="n1.example.com"), node_object(name="m2"))
    watched.process.configure(clientConnection={"kubeconfig": str(api.kubeconfig)})
    flags = ("--hostname-override=n1", f"--control-socket={watched.control}")
    watched.process.start(*flags, from_api=True)
    wait_until(watched.control.exists)

    def eligibility() -> dict[str, Any]:
        return watched.failing().get("NodeEligible", {})

    found = wait_until(eligibility, lambda one: "did you mean" in one.get("message", ""), seconds=10)
    assert found["reason"] == "NodeNotFound"
    assert found["message"] == "there is no Node n1, did you mean n1.example.com?"
    assert "--hostname-override" in found["remedy"]
    assert watched.node.get("/readyz", HEALTH_PORT).status == 503
    assert watched.command("status").returncode == 1
    api.load(node_object())
    watched.wait_clear()
    wait_until(lambda: watched.node.get("/readyz", HEALTH_PORT).status, lambda status: status == 200)


def test_a_new_service_does_not_take_an_address_that_is_served(watched: Watched) -> None:
    served = (web_service(), *web_slices(), node_object())
    with watched.node.backend():
        watched.start(objects=served)
        watched.node.wait_served("10.96.0.10")
        watched.process.objects(web_service("a-newer-one"), *served)
        found = watched.wait_raised("UniqueAddressesIPv4")
        assert found["reason"] == "AddressConflict"
        assert (
            "default/a-newer-one:http does not get 10.96.0.10:80, which default/web:http holds"
            in found["message"]
        )
        assert watched.command("status").returncode == 1
        assert watched.node.metric("pointsman_address_conflicts", ip_family="IPv4") == 1
        watched.node.assert_served("10.96.0.10")
        explained = watched.command("explain", "10.96.0.10").stdout
        assert "default/a-newer-one:http requests 10.96.0.10:80 as well" in explained
        assert "Recreate" not in explained + watched.command("explain", "a-newer-one").stdout
        watched.process.objects(*served)
        watched.wait_clear()
        assert watched.node.metric("pointsman_address_conflicts", ip_family="IPv4") == 0


class Fault(NamedTuple):
    """A fault of the host and its condition."""

    type: str
    reason: str
    message: str
    """Part of it."""
    make: Callable[[], object]
    undo: Callable[[], object]


def limit_table(directory: Path) -> tuple[Path, tuple[str, ...]]:
    """Return a file that stands for the size of the connection tracking table, and the command that puts it there.

    Only the machine's own network namespace may change the real one, which all tests share.
    """
    limit = directory / "nf_conntrack_max"
    limit.write_text("262144\n")
    script = f'mount --bind {limit} /proc/sys/net/netfilter/nf_conntrack_max && exec "$0" "$@"'
    return limit, ("unshare", "--mount", "sh", "-c", script)


class Uplink:
    """A second interface of the node, where packets arrive whose route back is another one."""

    def __init__(self, node: LabNode) -> None:
        self.node, self.other = node, Namespace()
        node.run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", self.other.path)
        node.run("ip", "addr", "add", "192.0.2.1/24", "dev", "up0")
        node.run("ip", "link", "set", "up0", "up")
        address = json.loads(node.run("ip", "-j", "link", "show", "up0"))[0]["address"]
        for command in (
            "link set eth0 up",
            "addr add 198.51.100.7/24 dev eth0",
            f"neigh add 192.0.2.1 lladdr {address} dev eth0",
            "route add 192.0.2.1 dev eth0",
        ):
            self.other.run(("ip", *command.split()))

    def send(self) -> None:
        self.node.run("sysctl", "-w", "net.ipv4.conf.up0.rp_filter=1")
        with self.other.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(20):
                sender.sendto(b"lost", ("192.0.2.1", 9))

    def forgive(self) -> None:
        self.node.run("sysctl", "-w", "net.ipv4.conf.up0.rp_filter=2")


@pytest.fixture
def uplink(node: LabNode) -> Iterator[Uplink]:
    made = Uplink(node)
    yield made
    made.other.close()


def list_faults(watched: Watched, uplink: Uplink, table: Path) -> Iterator[Fault]:
    node, process = watched.node, watched.process
    pid = str(process.pid)
    timeout = "net.netfilter.nf_conntrack_tcp_timeout_established"
    enter = ("nsenter", "--mount", f"--target={pid}")
    limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)

    def run(*command: str) -> Callable[[], object]:
        return lambda: node.run(*command)

    def limit_descriptors() -> None:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.descriptors() + 1, limits[1]))

    yield Fault(
        "PodRoutesIPv4",
        "NoRoute",
        "10.244.2.10: the route is a blackhole",
        run("ip", "route", "add", "blackhole", "10.244.2.10/32"),
        run("ip", "route", "del", "blackhole", "10.244.2.10/32"),
    )
    yield Fault(
        "BridgeNetfilterIPv4",
        "BridgeBypassesRules",
        "between pods at bridge cni0",
        run("ip", "addr", "add", "10.244.1.1/16", "dev", "cni0"),
        run("sysctl", "-w", "net.bridge.bridge-nf-call-iptables=1"),
    )
    yield Fault("ReversePathIPv4", "ReversePathDrops", "up0", uplink.send, uplink.forgive)
    yield Fault(
        "ConnectionTracking",
        "ConntrackFull",
        "of 1 connections tracked",
        lambda: table.write_text("1\n"),
        lambda: table.write_text("262144\n"),
    )
    yield Fault(
        "SysctlNfConntrackTcpTimeoutEstablished",
        "Restored",
        "to 1000 instead of 86400; it was restored",
        run("sysctl", "-w", f"{timeout}=1000"),
        lambda: None,
    )
    yield Fault(
        "StateDirectory",
        "NotWritable",
        "not writable",
        run(*enter, "mount", "-t", "tmpfs", "-o", "ro", "none", str(process.state)),
        run(*enter, "umount", str(process.state)),
    )
    yield Fault(
        "Descriptors",
        "NearLimit",
        "file descriptors are open",
        limit_descriptors,
        lambda: resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits),
    )


def test_faults_of_the_host_are_named_until_they_are_removed(
    watched: Watched, uplink: Uplink, tmp_path: Path
) -> None:
    table, wrap = limit_table(tmp_path)
    watched.process.state.mkdir(exist_ok=True)
    watched.start(wrap=wrap)
    watched.wait_checked()
    faults = list(list_faults(watched, uplink, table))
    for fault in faults:
        fault.make()
    wanted = {fault.type for fault in faults}
    seen: dict[str, dict[str, Any]] = {}

    def collect() -> set[str]:
        """That a setting was restored is said for a while only."""
        seen.update(watched.failing())
        return seen.keys() & wanted

    wait_until(collect, lambda found: found == wanted)
    assert seen.keys() == wanted
    for fault in faults:
        condition = seen[fault.type]
        assert condition["reason"] == fault.reason
        assert fault.message in condition["message"]
        assert condition["remedy"]
        if fault.reason != "Restored":
            assert watched.node.metric("pointsman_condition", type=fault.type, reason=fault.reason) == 1
    watched.assert_not_ready("ConnectionTracking", "ConntrackFull")
    assert watched.node.metric("pointsman_conntrack_usage_ratio") >= 1
    wait_until(lambda: watched.states()["IPv4"], lambda state: state == "down")
    for fault in faults:
        fault.undo()
    watched.wait_clear()
    assert watched.node.get("/readyz", HEALTH_PORT).status == 200
    assert watched.states() == {"IPv4": "healthy", "IPv6": "healthy"}
    assert watched.node.metric("pointsman_sysctls_restored_total") == 1
    restored = watched.node.run("sysctl", "-n", "net.netfilter.nf_conntrack_tcp_timeout_established")
    assert restored.strip() == "86400"


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        ({"clusterCIDR": "10.99.0.0/16"}, "PodRangeNotDetected", "10.99.0.0/16"),
        (
            {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": "cali"}},
            "PodsNotDetected",
            "detectLocal.interfaceNamePrefix cali",
        ),
    ],
)
def test_detection_of_local_pods_that_does_not_fit_is_named(
    watched: Watched, fields: dict[str, Any], reason: str, message: str
) -> None:
    node = node_object(podCIDRs=["10.244.1.0/24"])
    watched.start(objects=(web_service(), *web_slices("web", *PODS), node))
    watched.process.configure(**fields)
    found = watched.wait_raised("LocalDetectionIPv4")
    assert found["reason"] == reason
    assert message in found["message"]
    assert watched.command("status").returncode == 0, "packets flow"
    watched.process.configure(clusterCIDR="10.244.0.0/16")
    watched.wait_clear()


class MemoryGroup:
    """A cgroup with a memory limit."""

    def __init__(self, name: str) -> None:
        root = Path("/sys/fs/cgroup")
        is_v2 = (root / "cgroup.controllers").exists()
        self._group = (root if is_v2 else root / "memory") / name
        files = (
            ("memory.max", "memory.current") if is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        self._limit, self._used = (self._group / file for file in files)
        self.wrap = ("sh", "-c", f'echo $$ > {self._group}/cgroup.procs && exec "$0" "$@"')
        try:
            self._group.mkdir()
            self.limit(1 << 32)
        except OSError:
            pytest.skip("needs a memory cgroup that can be written")

    @property
    def used(self) -> int:
        return int(self._used.read_text())

    def limit(self, size: int) -> None:
        self._limit.write_text(str(size))

    def remove(self) -> None:
        self._group.rmdir()


def test_memory_near_the_limit_of_the_cgroup_is_named(watched: Watched, tmp_path: Path) -> None:
    group = MemoryGroup(f"pointsman-{os.getpid()}")
    try:
        watched.start(wrap=group.wrap)
        group.limit(int(group.used / 0.93))
        found = watched.wait_raised("Memory")
        assert (found["reason"], "MiB" in found["message"]) == ("NearLimit", True)
        group.limit(1 << 32)
        watched.wait_clear()
    finally:
        watched.process.stop()
        group.remove()
