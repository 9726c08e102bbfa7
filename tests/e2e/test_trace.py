"""trace follows real packets, tells what became of them, and leaves nothing behind however it ends."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness import lab as harness
from tests.harness.waiting import wait_until
from tests.harness.world import World, running

from pointsman.backends.netfilter.names import TRACE_TABLE
from pointsman.cli.control_client import ask
from pointsman.cli.main import main
from pointsman.kernel.nfnl import NFPROTO, NftablesSocket
from pointsman.lab import HOSTS
from pointsman.lab.objects import LabService, backends
from pointsman.model.addresses import Family
from pointsman.report.status import StatusReport

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

FAR = LabService("far", 1, backends("pod4"))
EMPTY = LabService("empty", 2)
FRONTEND, ENDPOINT = f"{FAR.address('cluster', 4)}:80", "10.244.2.14:8080"


@pytest.fixture(scope="module", params=["nftables", "iptables"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("trace"), request.param, [FAR, EMPTY]) as made:
        yield made


def arguments(world: World, *flags: str) -> list[str]:
    socket = world.proxy.manifests.parent / "state" / "control.sock"
    return ["trace", *flags, "--control-socket", str(socket)]


def traced(world: World, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    with world.cluster["n1"].entered():
        status = main(arguments(world, *flags))
    captured = capsys.readouterr()
    assert not is_tracing(world)
    return status, captured.out, captured.err


@contextlib.contextmanager
def waiting(world: World, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A trace of its own that waits for a packet."""
    command = [sys.executable, "-m", "pointsman", *arguments(world, *flags)]
    with world.cluster["n1"].entered():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: is_tracing(world), bool), process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def is_tracing(world: World) -> bool:
    return "pointsman-trace" in world.cluster["n1"].run(["nft", "list", "tables"])


def stages(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(stage["hook"], stage["destination"]) for stage in document["stages"]]


def test_a_packet_of_the_node_itself(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    syncs = _syncs(world)
    status, text, _ = traced(world, capsys, "lab/far", "-o", "json")
    report = json.loads(text)
    assert status == 0, text
    assert stages(report) == [("output", FRONTEND), ("output", ENDPOINT), ("postrouting", ENDPOINT)]
    assert [stage["belongsTo"] for stage in report["stages"]] == [
        "ClusterIP of lab/far:p80-tcp",
        *["endpoint of lab/far:p80-tcp, on n2"] * 2,
    ]
    verdicts = [step["verdict"] for stage in report["stages"] for step in stage["steps"]]
    assert "destination translated" in verdicts
    assert "source translated" in verdicts
    assert report["connection"].startswith("connected in ")
    assert _syncs(world) == syncs


def _syncs(world: World) -> list[int]:
    socket = Path(arguments(world)[-1])
    return [len(family.history) for family in ask(socket, "/status", StatusReport).families]


def test_a_packet_of_a_pod_is_awaited_and_others_are_not_followed(world: World) -> None:
    pod = HOSTS["pod2"].ipv4
    with waiting(world, FRONTEND, "--from", pod) as process:
        world.ask("pod3", FAR)
        world.ask("pod2", FAR)
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert f"waiting up to 60 s for a connection from {pod} to {FRONTEND}/TCP" in errors
    lines = output.splitlines()
    assert lines[0] == f"{FRONTEND}: a packet from {pod} to {FRONTEND}/TCP"
    assert [line.partition(":")[0] for line in lines if line[:1].isalpha()] == [
        "prerouting",
        "forward",
        "postrouting",
    ]
    assert f"its destination became {ENDPOINT}, endpoint of lab/far:p80-tcp, on n2; it left by eth0" in output
    assert HOSTS["pod3"].ipv4 not in output


def test_who_drops_or_rejects_a_packet_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    node = world.cluster["n1"]
    chain = "add table inet fw; add chain inet fw guard { type filter hook output priority 0; policy %s; }; "
    rule = 'add rule inet fw guard ip daddr 10.244.0.0/16 tcp dport 8080 counter drop comment "no pods"'
    for policy, rules, said in (
        ("accept", rule, "by its rule `daddr 10.244.0.0/16 protocol tcp dport 8080 /* no pods */`"),
        ("drop", "", "dropped by the policy of chain guard of table inet fw"),
    ):
        node.run(["nft", chain % policy + rules])
        try:
            status, text, _ = traced(world, capsys, "lab/far", "--seconds=0.5")
        finally:
            node.run(["nft", "delete table inet fw"])
        assert status == 1
        assert "✗ Result: dropped" in text
        assert said in text
        assert "Connection: no reply within 0.5 s" in text
    status, text, _ = traced(world, capsys, "lab/empty")
    assert status == 1
    assert "✗ Result: rejected in chain" in text


@pytest.mark.parametrize("world", ["nftables"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_behind_however_it_ends(world: World, number: signal.Signals) -> None:
    with waiting(world, "lab/far", "--wait") as process:
        process.send_signal(number)
        process.communicate(timeout=20)
        assert wait_until(lambda: not is_tracing(world), bool)


@pytest.mark.parametrize("world", ["nftables"], indirect=True)
def test_what_an_old_kernel_kept_goes_with_the_next_trace_or_a_clean_up(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    leftover = ["nft", "add table ip pointsman-trace; add chain ip pointsman-trace output"]
    world.cluster["n1"].run(leftover)
    assert traced(world, capsys, "lab/far")[0] == 0
    world.cluster["n1"].run(leftover)
    with world.cluster["n1"].entered():
        socket = NftablesSocket()
        try:
            assert [socket.delete_table(NFPROTO[Family.IPV4], TRACE_TABLE) for _ in range(2)] == [True, False]
        finally:
            socket.close()
    assert not is_tracing(world)


@pytest.mark.parametrize("world", ["nftables"], indirect=True)
def test_what_cannot_be_followed_is_said(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = traced(world, capsys, "lab/far", "--wait", "--seconds=0.1")
    assert status == 2
    assert f"no connection to {FRONTEND}/TCP began within 0.1 s" in errors
    status, _, errors = traced(world, capsys, "lab/fra")
    assert status == 2
    assert "no Service lab/fra" in errors
    with waiting(world, "lab/far", "--wait"), world.cluster["n1"].entered():
        assert main(arguments(world, "lab/far")) == 2
        assert "another trace is running" in capsys.readouterr().err
    node = world.cluster["n1"]
    node.run(["iptables-legacy", "-P", "FORWARD", "ACCEPT"])
    _, text, _ = traced(world, capsys, "lab/far")
    assert "! legacy iptables has tables here" in text
