"""`pointsman cleanup` beside a running proxy, as a dry run, and beside rules of kube-proxy."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import LabNode, NodeProcess, needs_root

pytestmark = needs_root

OBJECTS = (web_service(), *web_slices(), node_object())
CLOSE_WAIT = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
KUBE_PROXY_TABLE = """add table ip kube-proxy { comment "rules for kube-proxy" ; }
add chain ip kube-proxy services
"""
KUBE_PROXY_CHAINS = """*nat
:KUBE-SERVICES - [0:0]
:KUBE-PROXY-CANARY - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
COMMIT
"""


def clean_up(node: LabNode, process: NodeProcess, *flags: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "pointsman", "cleanup", f"--state-dir={process.state}", *flags)
    with node.namespace.entered():
        return subprocess.run(command, capture_output=True, text=True, timeout=60)


def serve(process: NodeProcess, mode: str = "nftables") -> None:
    process.configure(mode=mode, conntrack={"maxPerCore": 0, "tcpCloseWaitTimeout": "1234s"})
    process.objects(*OBJECTS)
    process.start()
    process.wait_synced()


def rules(node: LabNode) -> str:
    saved = re.sub(r"^#.*|\[\d+:\d+\]", "", node.run("iptables-save"), flags=re.MULTILINE)
    return node.run("nft", "list", "tables") + saved


def test_it_refuses_while_a_proxy_serves_and_names_its_process(node: LabNode, process: NodeProcess) -> None:
    serve(process)
    before = rules(node)
    refused = clean_up(node, process)
    assert refused.returncode == 2
    assert f"pid {process.pid}" in refused.stderr
    assert "--force" in refused.stderr
    assert refused.stdout == ""
    assert rules(node) == before
    assert node.run("cat", CLOSE_WAIT).strip() == "1234"


def test_force_removes_the_rules_of_a_running_proxy(node: LabNode, process: NodeProcess) -> None:
    serve(process)
    forced = clean_up(node, process, "--force")
    assert forced.returncode == 0, forced.stderr
    assert "removed table ip kube-proxy\n" in forced.stdout


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_a_dry_run_changes_nothing_and_says_what_the_command_would_do(
    node: LabNode, process: NodeProcess, mode: str
) -> None:
    serve(process, mode)
    running = clean_up(node, process, "--dry-run")
    assert running.returncode == 0
    assert f"pid {process.pid}" in running.stderr
    process.stop()
    before = rules(node)
    dry = clean_up(node, process, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    data = json.loads(clean_up(node, process, "--dry-run", "-o", "json").stdout)
    assert len(data) == len(dry.stdout.splitlines())
    assert rules(node) == before
    assert node.run("cat", CLOSE_WAIT).strip() == "1234"
    done = clean_up(node, process)
    assert done.returncode == 0, done.stderr
    expected = dry.stdout.replace("would remove ", "removed ").replace("would restore ", "restored ")
    assert done.stdout == expected
    assert "restored kernel setting net/netfilter/nf_conntrack_tcp_timeout_close_wait" in done.stdout
    assert "KUBE-" not in rules(node)
    assert "kube-proxy" not in rules(node)


def test_rules_of_kube_proxy_are_removed_only_on_request(node: LabNode, process: NodeProcess) -> None:
    node.run("nft", "-f", "-", text=KUBE_PROXY_TABLE)
    node.run("iptables-restore", "--noflush", text=KUBE_PROXY_CHAINS)
    before = rules(node)
    kept = clean_up(node, process)
    assert kept.returncode == 0, kept.stderr
    assert "kept table ip kube-proxy: not made by Pointsman" in kept.stdout
    assert "kept chains in iptables" in kept.stdout
    assert "--all-proxies" in kept.stdout
    assert rules(node) == before
    removed = clean_up(node, process, "--all-proxies")
    assert removed.returncode == 0, removed.stderr
    assert "kube-proxy" not in rules(node)
    assert "KUBE-" not in rules(node)


def test_a_table_that_kube_proxy_took_over_is_not_ours(node: LabNode, process: NodeProcess) -> None:
    serve(process)
    process.stop()
    node.run("nft", "add", "chain", "ip", "kube-proxy", "service-ULMVA6XW-ns1/svc1/tcp/p80")
    done = clean_up(node, process)
    assert "kept table ip kube-proxy" in done.stdout
    assert "removed table ip6 kube-proxy" in done.stdout


def test_it_refuses_while_kube_proxy_runs(node: LabNode, process: NodeProcess, tmp_path: Path) -> None:
    program = tmp_path / "kube-proxy"
    shutil.copy("/bin/sleep", program)
    with node.namespace.entered(), subprocess.Popen((program, "60")) as other:
        try:
            refused = clean_up(node, process)
        finally:
            other.kill()
    assert refused.returncode == 2
    assert f"kube-proxy (pid {other.pid})" in refused.stderr
    assert clean_up(node, process).returncode == 0


def test_the_flag_of_kube_proxy_removes_everything_and_warns(node: LabNode, process: NodeProcess) -> None:
    node.run("nft", "-f", "-", text=KUBE_PROXY_TABLE)
    serve(process)
    code = "import sys; from pointsman.cli.main import kube_proxy_main; sys.exit(kube_proxy_main())"
    command = (sys.executable, "-c", code, "--cleanup", f"--state-dir={process.state}")
    with node.namespace.entered():
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"warning: a proxy (pid {process.pid}) is running" in done.stderr
    assert "removed table ip kube-proxy\n" in done.stdout
