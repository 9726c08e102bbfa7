"""`kubectl pointsman` with a kubectl that runs the commands here, against two running proxies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import factory
from tests.unit.cli.live_proxy import LiveProxy, live_proxy

from pointsman.cli.kubectl_plugin import COMMANDS, UI, Pod, choose_pods, main, parse_pods, split_arguments
from pointsman.cli.main import SUBCOMMANDS
from pointsman.errors import KernelError, PointsmanError

KUBECTL = """#!{python}
import json, os, subprocess, sys
sockets = json.loads({sockets!r})
arguments = [word for word in sys.argv[1:] if not word.startswith("--context")]
if arguments[:2] == ["get", "pods"]:
    print(open({pods!r}).read())
elif arguments[0] == "exec":
    place = arguments.index("--namespace")
    pod = arguments[place + 2]
    command = arguments[arguments.index("--") + 1:]
    assert command.pop(0) == "pointsman"
    if pod not in sockets:
        sys.exit("error: unable to upgrade connection: container not found")
    sys.exit(subprocess.run([sys.executable, "-m", "pointsman", *command, "--control-socket", sockets[pod]]).returncode)
elif arguments[0] == "port-forward":
    print("Forwarding from 127.0.0.1:43210 -> 10249", flush=True)
else:
    sys.exit(f"unexpected: {{arguments}}")
"""
Captured = pytest.CaptureFixture[str]


def pod(node: str, name: str = "", phase: str = "Running", container: str = "pointsman") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "kube-system", "name": name or f"pod-{node}"},
        "spec": {"nodeName": node, "containers": [{"name": "other"}, {"name": container}]},
        "status": {"phase": phase},
    }


class Fleet:
    """Two nodes that know the same objects, until a test says otherwise."""

    def __init__(self, proxies: dict[str, LiveProxy], directory: Path) -> None:
        self.proxies = proxies
        self._pods = directory / "pods.json"
        program = directory / "bin" / "kubectl"
        program.parent.mkdir()
        sockets = json.dumps({f"pod-{node}": str(proxy.socket) for node, proxy in proxies.items()})
        program.write_text(KUBECTL.format(python=sys.executable, sockets=sockets, pods=str(self._pods)))
        program.chmod(0o755)
        self.path = f"{program.parent}:{os.environ['PATH']}"
        self.pods(*proxies)

    def pods(self, *nodes: str) -> None:
        self._pods.write_text(json.dumps({"items": [pod(node) for node in nodes]}))


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    objects = (
        factory.node("n1", addresses=[{"type": "InternalIP", "address": "192.168.1.10"}]),
        factory.node("n2", addresses=[{"type": "InternalIP", "address": "192.168.1.11"}]),
        factory.service(),
        factory.endpoint_slice("10.244.1.5"),
    )
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        live_proxy(tmp_path / "a", *objects, node_name="n1") as one,
        live_proxy(tmp_path / "b", *objects, node_name="n2") as two,
    ):
        made = Fleet({"n1": one, "n2": two}, tmp_path)
        monkeypatch.setenv("PATH", made.path)
        yield made


def test_nodes_that_agree_are_said_to(fleet: Fleet, capsys: Captured) -> None:
    for arguments in (["status"], ["list"], ["explain", "web"], ["n1", "n2", "status"]):
        assert main(["--context=test", *arguments]) == 0
        assert "✓ all nodes agree" in capsys.readouterr().out


def test_a_node_that_knows_other_endpoints_is_named(fleet: Fleet, capsys: Captured) -> None:
    fleet.proxies["n2"].put(factory.endpoint_slice("10.244.1.5", "10.244.1.6"))
    assert main(["explain", "web", "--from", "node"]) == 1
    text = capsys.readouterr().out
    assert "! nodes disagree about the endpoints of default/web:http TCP (IPv4)" in text
    assert "    n1: 10.244.1.5:8080\n    n2: 10.244.1.5:8080, 10.244.1.6:8080\n" in text
    fleet.proxies["n1"].put(factory.service("alone", clusterIP="10.96.0.11"))
    assert main(["list"]) == 1
    text = capsys.readouterr().out
    assert "! nodes disagree about default/alone:http TCP (IPv4)" in text
    assert "    n2: unknown" in text
    assert main(["status", "-o", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["disagreements"]
    assert found["about"] == "the number of service ports"
    assert [group["nodes"] for group in found["groups"]] == [["n1"], ["n2"]]


def test_services_that_are_down_are_counted_and_the_document_has_numbers(
    fleet: Fleet, capsys: Captured
) -> None:
    for proxy in fleet.proxies.values():
        proxy.put(factory.service("alone", clusterIP="10.96.0.11"))
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    assert "! n1, n2: 1 of 2 service ports is down; to see which: kubectl pointsman list --state down" in text
    assert "✓ all nodes agree, some Services are not healthy" in text
    assert main(["status", "-o", "json"]) == 0
    (row, _) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["node"], row["servicePorts"], row["serviceStates"]["down"]) == ("n1", 2, 1)
    assert main(["list", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["port"]["service"], row["states"][0]["nodes"]) for row in rows] == [
        ("default/alone", ["n1", "n2"]),
        ("default/web", ["n1", "n2"]),
    ]
    for arguments, shown in (
        (["-o", "name"], "default/alone\ndefault/web\n"),
        (
            ["-o", "custom-columns=A:.service,B:.total", "--no-headers"],
            "default/alone  0\ndefault/web    1\n",
        ),
        (["svc/web", "--no-headers"], "default/web  ClusterIP  http/TCP  10.96.0.10:80  -  -  1  healthy\n"),
    ):
        assert main(["list", *arguments]) == 0
        assert capsys.readouterr().out == shown


def test_events_of_all_nodes_are_merged(fleet: Fleet, capsys: Captured) -> None:
    for proxy in fleet.proxies.values():
        proxy.put(factory.endpoint_slice())
    fleet.proxies["n2"].put(factory.service("alone", clusterIP="10.96.0.11"))
    assert main(["events", "-n", "default", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["event"]["kind"], row["nodes"]) for row in rows] == [
        ("ServiceDown", ["n1", "n2"]),
        ("PortsAdded", ["n2"]),
    ]
    assert main(["events"]) == 0
    assert re.search(r" n1, n2 +default/web +IPv4 +ServiceDown ", capsys.readouterr().out)


@pytest.mark.skipif(os.geteuid() != 0, reason="top reads the kernel's flows, which needs root")
def test_top_adds_up_the_nodes(fleet: Fleet, capsys: Captured) -> None:
    assert main(["top", "-n", "default", "--once", "-d", "0.2", "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["node"], [port["service"] for port in report["ports"]]) == ("2 nodes", ["default/web"])
    fleet.pods("n1", "n2", "n3")
    assert main(["top", "--once", "-d", "0.2"]) == 2
    text = capsys.readouterr().out
    assert "2 nodes, nftables mode" in text
    assert "! n3 could not be asked: error: unable to upgrade connection" in text


@pytest.mark.parametrize("words", [["ui", "n2"], ["n2", "ui"]])
def test_ui_prints_the_address_of_a_status_page(words: list[str], fleet: Fleet, capsys: Captured) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == "n2: http://127.0.0.1:43210/ until Ctrl-C\n"


def test_conditions_name_their_nodes(fleet: Fleet, capsys: Captured) -> None:
    fleet.proxies["n2"].backend.failures += [KernelError("no memory")] * 100
    fleet.proxies["n2"].put_without_waiting(factory.service("second", clusterIP="10.96.0.11"))
    assert main(["status"]) == 1
    text = capsys.readouterr().out
    assert "✗ n2: SyncIPv4: the last sync failed: no memory" in text


def test_a_node_that_cannot_be_asked_is_reported_and_the_others_answer(
    fleet: Fleet, capsys: Captured
) -> None:
    fleet.pods("n1", "n2", "n3")
    assert main(["status"]) == 2
    text = capsys.readouterr().out
    assert "2 nodes answered" in text
    assert "✗ n3 could not be asked: error: unable to upgrade connection: container not found" in text


def test_other_commands_are_shown_node_by_node(fleet: Fleet, capsys: Captured) -> None:
    fleet.proxies["n2"].backend.programmed.clear()
    assert main(["verify"]) == 1
    one, _, two = capsys.readouterr().out.removeprefix("--- n1\n").partition("--- n2\n")
    assert "✓ IPv4" in one
    assert "✗ IPv4: 1 difference" in two


def test_one_node_answers_as_if_one_were_there(fleet: Fleet, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["n2", "explain", "web", "--no-kernel"]) == 0
    assert "default/web" in (text := capfd.readouterr().out)
    assert "on node n2, nftables mode, from the running proxy" in text
    assert main(["n2", "explain", "nobody"]) == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["n9", "status"], "n9 is neither a command nor a node with a Pointsman pod; nodes: n1, n2"),
        (["trace", "web"], "trace runs continuously; choose one node: n1, n2"),
        (["list", "-w"], "list runs continuously; choose one node"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str], complaint: str, fleet: Fleet, capsys: Captured
) -> None:
    assert main(words) == 2
    assert f"kubectl pointsman: {complaint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "shown"),
    [
        (["list", "--help"], 0, "usage: pointsman list"),
        (["list", "--sort-by", "size"], 2, "argument --sort-by: invalid choice: 'size'"),
        (["explain"], 2, "the following arguments are required: target"),
    ],
)
def test_help_and_wrong_arguments_are_shown_once(
    words: list[str], status: int, shown: str, fleet: Fleet, capsys: Captured
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == status
    assert "".join(capsys.readouterr()).count(shown) == 1


def test_without_a_command_it_says_which_there_are(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["node-a"])
    assert "name a command: status, list" in capsys.readouterr().err


def test_a_mistyped_command_is_recognised(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["node-a", "stauts"])
    assert capsys.readouterr().err.endswith("; did you mean status?\n")


def test_without_kubectl_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["status"]) == 2
    assert "kubectl is not installed" in capsys.readouterr().err


def test_of_a_kubectl_that_fails_its_last_word_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(
        "#!/bin/sh\necho 'E1118 memcache.go:265] again and again' >&2\necho refused >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["status"]) == 2
    assert capsys.readouterr().err == "kubectl pointsman: kubectl cannot list pods: refused\n"


def test_the_plugin_is_installed_where_kubectl_looks() -> None:
    program = Path(sys.executable).parent / "kubectl-pointsman"
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30)
    assert "kubectl pointsman [flags] [NODE...] COMMAND" in done.stdout


def test_its_commands_are_commands() -> None:
    assert set(COMMANDS) - {UI} <= set(SUBCOMMANDS)


def test_the_first_word_that_is_a_command_ends_the_nodes() -> None:
    assert split_arguments(["a", "b", "explain", "status", "-o", "json"]) == (
        ["a", "b"],
        ["explain", "status", "-o", "json"],
    )
    assert split_arguments(["a"]) == (["a"], [])


def test_a_running_pod_is_preferred_and_pods_without_a_node_do_not_count() -> None:
    listing = {
        "items": [
            pod("n1", "z", "Pending"),
            pod("n1", "a"),
            pod("", "none"),
            pod("n2", container="kube-proxy"),
        ]
    }
    pods = parse_pods(json.dumps(listing).encode())
    assert choose_pods(pods, [], "x=y") == [
        Pod("n1", "kube-system", "a", "pointsman", True),
        Pod("n2", "kube-system", "pod-n2", "kube-proxy", True),
    ]
    with pytest.raises(PointsmanError, match="no pod with the labels x=y runs on any node"):
        choose_pods([], [], "x=y")
