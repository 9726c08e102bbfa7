"""explain sees what stands in the packets' way on the host, and only that: each trouble is made, felt by packets, and undone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import msgspec
import pytest
from tests.harness import lab as harness
from tests.harness.world import World, running

from pointsman.cli.control_client import ask
from pointsman.cli.main import main
from pointsman.explain.service_port import Explanation
from pointsman.explain.target import Question
from pointsman.lab.netns import Namespace
from pointsman.lab.objects import Backend, LabService, backends
from pointsman.lab.probe import Kind, run_probes
from pointsman.model.findings import Finding

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

FAR = LabService("far", 1, backends("pod4"))
DEAD = LabService("dead", 2, (Backend("pod4", port=9),))
NAMES = LabService("names", 3, backends("pod4"), protocols=("UDP",))
FAR_POD, FAR_IP = "10.244.2.14", FAR.address("cluster", 4)


class Trouble(msgspec.Struct, frozen=True):
    """Something done to node n1, and what explain has to say."""

    code: str
    words: str
    begin: tuple[str, ...]
    end: tuple[str, ...]
    client: str = "pod"
    prober: str = "pod1"
    fatal: bool = True
    """Packets stop, and explain says so."""
    family: int = 4


class Doing(TypedDict):
    begin: tuple[str, ...]
    end: tuple[str, ...]


def chain(
    hook: str, rule: str = "", *, priority: int = 0, kind: str = "filter", policy: str = "accept"
) -> Doing:
    """A table of somebody else with one base chain."""
    shape = f"{{ type {kind} hook {hook} priority {priority} ; policy {policy} ; }}"
    rules = (f"nft add rule inet fw c {rule}",) if rule else ()
    return {
        "begin": ("nft add table inet fw", f"nft add chain inet fw c {shape}", *rules),
        "end": ("nft delete table inet fw",),
    }


TROUBLES = {
    "forwarding": Trouble(
        "ForwardingOff",
        "net.ipv4.ip_forward is 0",
        ("sysctl -qw net.ipv4.ip_forward=0",),
        ("sysctl -qw net.ipv4.ip_forward=1",),
    ),
    "forwarding6": Trouble(
        "ForwardingOff",
        "net.ipv6.conf.all.forwarding is 0",
        ("sysctl -qw net.ipv6.conf.all.forwarding=0",),
        ("sysctl -qw net.ipv6.conf.all.forwarding=1",),
        family=6,
    ),
    "rule6": Trouble(
        "ForeignDrop",
        "`daddr fd00:10:244:2::/64 protocol tcp drop`",
        family=6,
        **chain("forward", "ip6 daddr fd00:10:244:2::/64 meta l4proto tcp drop"),
    ),
    "interface": Trouble(
        "InterfaceNotForwarding",
        "arrive on cni0",
        ("sysctl -qw net.ipv4.conf.cni0.forwarding=0",),
        ("sysctl -qw net.ipv4.conf.cni0.forwarding=1",),
        prober="",
        fatal=False,
    ),
    "policy": Trouble("ForeignDrop", "its policy is drop", **chain("forward", policy="drop")),
    "rule": Trouble(
        "ForeignDrop",
        f"`daddr {FAR_POD} protocol tcp dport 8080 drop`",
        **chain("forward", f"ip daddr {FAR_POD} tcp dport 8080 drop", priority=10),
    ),
    "output": Trouble(
        "ForeignDrop",
        "output, priority 0",
        client="node",
        prober="n1",
        **chain("output", "ip daddr 10.244.0.0/16 reject"),
    ),
    "maybe": Trouble(
        "ForeignMayDrop",
        "may drop packets from a pod",
        prober="",
        fatal=False,
        **chain("forward", "meta mark 0x77 accept", policy="drop"),
    ),
    "pairs": Trouble(
        "ForeignMayDrop",
        "daddr in @__set0 drop",
        prober="",
        fatal=False,
        **chain("forward", f"ip daddr . tcp dport {{ {FAR_POD} . 9 }} drop"),
    ),
    "untracked": Trouble(
        "NotTracked",
        "excludes packets",
        **chain("prerouting", f"ip daddr {FAR_IP} notrack", priority=-300),
    ),
    "earlier": Trouble(
        "EarlierNat",
        "before the proxy sees them",
        **chain("prerouting", f"ip daddr {FAR_IP} dnat ip to 10.244.1.77", priority=-150, kind="nat"),
    ),
    "masquerade": Trouble(
        "ForeignMasquerade",
        "replaces the source address",
        prober="",
        fatal=False,
        **chain("postrouting", "ip saddr 10.244.0.0/16 masquerade", priority=100, kind="nat"),
    ),
    "route": Trouble(
        "NoRoute",
        f"no route to {FAR_POD}:8080",
        ("ip route replace unreachable 10.244.2.0/24",),
        ("ip route del unreachable 10.244.2.0/24", "ip route add 10.244.2.0/24 via 172.30.0.20"),
    ),
    "iptables": Trouble(
        "ForeignDrop",
        "chain FORWARD of table ip filter",
        (
            "iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            f"iptables-nft -A FORWARD -d {FAR_POD} -p tcp --dport 8080 -j DROP",
        ),
        ("iptables-nft -F FORWARD",),
    ),
    "legacy": Trouble(
        "ForeignDrop",
        "chain FORWARD of table legacy filter",
        (
            "iptables-legacy -N guard",
            "iptables-legacy -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "iptables-legacy -A FORWARD -i cni0 -j guard",
            "iptables-legacy -A guard -d 10.244.2.0/24 -j REJECT",
        ),
        ("iptables-legacy -F FORWARD", "iptables-legacy -F guard", "iptables-legacy -X guard"),
        client="10.244.1.11",
    ),
    "blocked": Trouble(
        "ForeignDrop",
        "drops packets",
        client="node",
        prober="n1",
        **chain("output", f"ip daddr {FAR_POD} drop"),
    ),
    "lost frontend": Trouble(
        "ForeignDrop",
        "priority -200",
        client="node",
        prober="n1",
        **chain("output", f"ip daddr {FAR_IP} drop", priority=-200),
    ),
    "harmless": Trouble("", "", prober="", fatal=False, **chain("forward", "ct state invalid drop")),
    "let through": Trouble(
        "", "", prober="", fatal=False, **chain("forward", "ct status dnat accept", policy="drop")
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("host"), "nftables", [FAR, DEAD, NAMES]) as made:
        yield made


@contextlib.contextmanager
def undone(namespace: Namespace, command: str) -> Iterator[None]:
    try:
        yield
    finally:
        namespace.run(command.split())


@contextlib.contextmanager
def made(world: World, trouble: Trouble) -> Iterator[None]:
    node = world.cluster["n1"]
    try:
        for command in trouble.begin:
            node.run(command.split())
        yield
    finally:
        for command in trouble.end:
            node.run(command.split())


def control_socket(world: World) -> Path:
    return world.proxy.manifests.parent / "state" / "control.sock"


def explained(world: World, client: str, family: int = 4) -> tuple[Explanation, list[Finding]]:
    target = f"{FAR_IP}:80" if family == 4 else f"[{FAR.address('cluster', 6)}]:80"
    query = Question(target, client=client)
    explanation = ask(control_socket(world), "/explain", Explanation, query)
    return explanation, [cause for port in explanation.ports for cause in port.findings]


def reached(world: World, host: str, family: int) -> bool:
    (outcome,) = run_probes(world.cluster, [world.probe(host, FAR, "cluster", family)], timeout=0.5)
    return outcome.kind is Kind.ANSWERED


@pytest.mark.parametrize("name", TROUBLES)
def test_explain_sees_what_the_packets_feel(world: World, name: str) -> None:
    trouble = TROUBLES[name]
    before, causes = explained(world, trouble.client, trouble.family)
    assert before.is_healthy, causes
    assert causes == []
    assert before.ports[0].host.not_read == ()
    with made(world, trouble):
        explanation, causes = explained(world, trouble.client, trouble.family)
        if trouble.prober:
            assert not reached(world, trouble.prober, trouble.family)
    assert [cause.code for cause in causes] == ([trouble.code] if trouble.code else []), causes
    assert explanation.is_healthy is not trouble.fatal
    for cause in causes:
        assert trouble.words in cause.message
        assert cause.remedy
    assert reached(world, trouble.prober or "pod1", trouble.family)


def probed(
    world: World, service: LabService, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, str]:
    """explain --probe as somebody on node n1 runs it."""
    question = (
        "explain",
        f"{service.address('cluster', 4)}:80",
        "--from=node",
        "--probe",
        "--probe-seconds=0.5",
    )
    with world.cluster["n1"].entered():
        status = main([*question, "--control-socket", str(control_socket(world)), *flags])
    return status, capsys.readouterr().out


def test_a_probe_connects_to_endpoints_and_through_the_frontend(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = probed(world, FAR, capsys, "--probe-source=10.244.1.1")
    assert status == 0, text
    assert f"probe from this node to {FAR_IP}:80: connected in " in text
    assert "in   ready; probe from this node: connected in " in text
    assert "all probes from this node connected" in text


def test_a_probe_tells_dead_silent_blocked_and_unknown_endpoints_apart(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = probed(world, DEAD, capsys)
    assert status == 1
    assert f"✗ EndpointRefused: connections from this node to {FAR_POD}:9 fail: refused" in text
    pod = world.cluster["pod4"]
    with undone(pod, "nft delete table inet deaf"):
        pod.run(
            [
                "nft",
                "add table inet deaf; add chain inet deaf c { type filter hook input priority 0; policy drop; }",
            ]
        )
        status, text = probed(world, FAR, capsys)
    assert status == 1
    assert "✗ EndpointSilent" in text
    with made(world, TROUBLES["blocked"]):
        status, text = probed(world, NAMES, capsys)
    assert status == 1
    assert "✗ EndpointBlocked" in text
    status, text = probed(world, NAMES, capsys)
    assert status == 0, text
    assert "probe from this node: UDP: nothing came back" in text or "probe from this node: connected" in text


def test_a_frontend_that_fails_while_its_endpoints_answer_is_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with made(world, TROUBLES["lost frontend"]):
        status, text = probed(world, FAR, capsys)
    assert status == 1
    assert "✗ FrontendSilent: connections from this node to " in text
    assert "in   ready; probe from this node: connected in " in text
