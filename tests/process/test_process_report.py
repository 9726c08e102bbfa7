"""`pointsman report` beside a running process: everything a bug report needs, and not one credential."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import LabNode, NodeProcess, needs_root

pytestmark = needs_root

TOKEN = "planted-token-8d1f0a"
PASSWORD = "planted-password-77c2"


def report(node: LabNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    with node.namespace.entered():
        return subprocess.run(
            [sys.executable, "-m", "pointsman", "report", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PLANTED": PASSWORD},
        )


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: file.read().decode()
            for member in archive.getmembers()
            if (file := archive.extractfile(member)) is not None
        }


def test_the_archive_of_a_running_proxy_is_complete_and_holds_no_credential(
    node: LabNode, process: NodeProcess, api: ApiThread, tmp_path: Path
) -> None:
    api.load(web_service(), *web_slices(), node_object())
    document = json.loads(api.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": TOKEN}
    document["users"].append({"name": "other", "user": {"username": "u", "password": PASSWORD}})
    api.kubeconfig.write_text(json.dumps(document))
    process.configure(
        clientConnection={"kubeconfig": str(api.kubeconfig), "qps": 100, "burst": 100},
        logging={"verbosity": 9},
    )
    control = tmp_path / "control.sock"
    process.start(f"--control-socket={control}", from_api=True)
    process.wait_synced()
    assert api.call(lambda server: any(TOKEN in str(seen.headers) for seen in server.requests))
    archive = tmp_path / "report.tar.gz"
    done = report(node, "--file", str(archive), "--control-socket", str(control))
    assert done.returncode == 0, done
    assert archive.stat().st_mode & 0o777 == 0o600
    found = contents(archive)
    assert json.loads(found["status.json"])["mode"] == "nftables"
    assert json.loads(found["verification.json"])["families"][0]["differences"] == []
    assert "kubeproxy.config.k8s.io" in json.loads(found["configuration.json"])
    assert "kubeproxy_sync_proxy_rules_last_timestamp_seconds" in found["metrics.txt"]
    assert "Synced" in found["log.txt"]
    assert "10.96.0.10" in found["rules/nftables.txt"]
    assert "net/ipv4/ip_forward = " in found["sysctls.txt"]
    assert "IPv4 tcp: all " in found["conntrack.txt"]
    assert "kernel " in found["versions.txt"]
    assert "config" in found["flags.txt"]
    for name, text in found.items():
        assert TOKEN not in text, name
        assert PASSWORD not in text, name
        if name != "missing.txt":
            assert name in done.stdout
    again = report(node, "--file", str(archive), "--control-socket", str(control))
    assert again.returncode == 2
    assert "File exists" in again.stderr


def test_without_a_proxy_the_machine_is_still_reported(node: LabNode, tmp_path: Path) -> None:
    archive = tmp_path / "report.tar.gz"
    done = report(node, "--no-rules", "--file", str(archive), "--control-socket", str(tmp_path / "none"))
    assert done.returncode == 1, done
    assert "missing: status.json, configuration.json" in done.stdout
    assert "no proxy runs here" in done.stdout
    found = contents(archive)
    assert "no proxy runs here" in found["missing.txt"]
    assert not [name for name in found if name.startswith("rules/")]
    assert "default" in found["sysctls.txt"]
