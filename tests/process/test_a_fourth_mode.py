"""A new mode needs a module and a row: the whole program works with one that nobody has heard of."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake import toy_mode
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

from pointsman.model.addresses import Family

pytestmark = needs_root

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "tests.fake.toy_mode")
LINE = "10.96.0.10 80 tcp -> default/web:http at 172.30.0.10:8080"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "kernel"
    made.mkdir()
    monkeypatch.setenv(toy_mode.KERNEL, str(made))
    monkeypatch.chdir(ROOT)
    return made


@pytest.fixture
def comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(toy_mode.COMPARE, "0.05")


@pytest.fixture
def toy(kernel: Path, process: NodeProcess) -> Iterator[NodeProcess]:
    process.configure(mode=toy_mode.TOY)
    process.objects(web_service(), *web_slices(), node_object())
    process.start(f"--control-socket={process.state}/control.sock", command=PROGRAM)
    process.wait_synced()
    yield process
    process.stop()


def ask(node: LabNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    with node.namespace.entered():
        return subprocess.run((*PROGRAM, *arguments), capture_output=True, text=True, timeout=60)


def test_it_serves_repairs_reports_and_takes_over(toy: NodeProcess, node: LabNode) -> None:
    assert LINE in toy_mode.held(Family.IPV4).read_text().splitlines()
    assert "fd00:10:96::10" in toy_mode.held(Family.IPV6).read_text()
    assert node.get("/proxyMode").body == "toy"
    assert node.metric("toy_families_total") == 2
    assert node.metric("pointsman_rules_owned", table="lines", ip_family="IPv4") == 1
    assert node.metric("pointsman_condition", type="Toy", reason="OnlyAToy") == 1
    assert node.metric("kubeproxy_sync_full_proxy_rules_duration_seconds_count", ip_family="IPv4") == 1
    toy_mode.held(Family.IPV4).unlink()
    wait_until(toy_mode.held(Family.IPV4).exists)
    assert node.metric("pointsman_drift_repaired_total", ip_family="IPv4") == 1
    toy.objects(web_service(), *web_slices("web", "172.30.0.11", "fd00:30::11"), node_object())
    wait_until(lambda: "172.30.0.11:8080" in toy_mode.held(Family.IPV4).read_text())


@pytest.mark.usefixtures("comparing")
def test_a_line_that_its_look_for_foreign_changes_does_not_see_is_found_by_comparing(
    process: NodeProcess, node: LabNode, kernel: Path
) -> None:
    process.configure(mode=toy_mode.TOY)
    process.objects(web_service(), *web_slices(), node_object())
    process.start(command=PROGRAM)
    process.wait_synced()
    whole = toy_mode.held(Family.IPV4).read_text()
    toy_mode.held(Family.IPV4).write_text(f"{whole}a line of somebody else\n")
    wait_until(lambda: toy_mode.held(Family.IPV4).read_text() == whole)
    wait_until(lambda: node.metric("pointsman_drift_repaired_total", ip_family="IPv4") == 1)
    assert node.metric("pointsman_drift_repaired_total", ip_family="IPv6") == 0
    process.stop()


def test_verify_and_explain_and_status_know_it(toy: NodeProcess, node: LabNode) -> None:
    socket = f"--control-socket={toy.state}/control.sock"
    equal = ask(node, "verify", socket)
    assert (equal.returncode, equal.stderr) == (0, "")
    with toy_mode.held(Family.IPV4).open("a") as file:
        file.write("a line of somebody else\n")
    different = ask(node, "verify", socket)
    assert different.returncode == 1
    assert "a line of somebody else" in different.stdout
    explained = ask(node, "explain", "10.96.0.10:80", socket)
    assert explained.returncode == 0, explained.stdout + explained.stderr
    assert "toy mode" in explained.stdout
    assert "delivered to 1 endpoint" in explained.stdout
    wrong_port = ask(node, "explain", "10.96.0.10:81", socket)
    assert "packets to other ports are rejected" in wrong_port.stdout
    assert json.loads(ask(node, "status", socket, "-o", "json").stdout)["mode"] == "toy"


def test_it_renders_compares_and_explains_manifests_without_a_proxy(
    kernel: Path, process: NodeProcess, node: LabNode
) -> None:
    process.objects(web_service(), *web_slices(), node_object())
    offline = (f"--manifests={process.manifests}", "--mode=toy", "--family=ipv4")
    rendered = ask(node, "render", *offline)
    assert (rendered.returncode, rendered.stdout) == (0, f"{LINE}\n"), rendered.stderr
    assert ask(node, "render", "--diff", *offline).returncode == 1
    toy_mode.held(Family.IPV4).write_text(rendered.stdout)
    assert ask(node, "render", "--diff", *offline).returncode == 0
    assert "toy mode" in ask(node, "explain", "web", *offline).stdout


def test_a_switch_of_modes_and_clean_up_remove_its_traces(toy: NodeProcess, node: LabNode) -> None:
    toy.stop()
    toy.configure(mode="nftables")
    toy.start(command=PROGRAM)
    toy.wait_synced()
    wait_until(lambda: not any(toy_mode.held(family).exists() for family in Family))
    toy.stop()
    toy_mode.held(Family.IPV6).write_text("left\n")
    cleaned = ask(node, "cleanup", f"--state-dir={toy.state}")
    assert cleaned.returncode == 0, cleaned.stderr
    assert "removed toy lines in IPv6\n" in cleaned.stdout
    assert "removed table ip kube-proxy\n" in cleaned.stdout
    assert not toy_mode.held(Family.IPV6).exists()


def test_a_machine_that_lacks_what_it_needs_ends_the_process_with_the_reason(
    kernel: Path, process: NodeProcess
) -> None:
    kernel.rmdir()
    process.configure(mode=toy_mode.TOY)
    process.start(command=PROGRAM)
    assert process.wait_exit() == 1
    assert "mode toy cannot be used here: the toy kernel is missing" in process.log_text
