"""The configurations that we ship raise no condition on a node that is as they expect it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until
from tests.project.deploy.rendering import DEPLOY, HELM, KUSTOMIZATIONS, chart, kustomized

pytestmark = needs_root

ROUNDS = 3
"""Of checks of the host: two count, and the first may have begun before the test."""


def shipped_configurations() -> dict[str, bytes]:
    """Return every different configuration, by its content's first place."""
    every = {"systemd": (DEPLOY / "systemd/config.yaml").read_bytes()}
    every |= {name: kustomized(name).config for name in KUSTOMIZATIONS}
    if HELM.exists():
        every["helm"] = chart().config
    unique: dict[bytes, str] = {}
    for name, text in every.items():
        unique.setdefault(text, name)
    return {name: text for text, name in unique.items()}


@pytest.mark.parametrize("name", shipped_configurations())
def test_a_shipped_configuration_raises_no_condition(
    name: str, node: LabNode, process: NodeProcess, tmp_path: Path
) -> None:
    config, control = tmp_path / "shipped.yaml", tmp_path / "control.sock"
    config.write_bytes(shipped_configurations()[name])
    objects = (
        *web_slices("web", "10.244.1.10", "fd00:10:244:1::10"),
        node_object(podCIDRs=["10.244.1.0/24"]),
    )
    process.objects(web_service(), *objects)
    process.start(f"--config={config}", "--hostname-override=n1", f"--control-socket={control}")
    process.wait_synced()
    wait_until(lambda: node.metric("pointsman_host_checks_total"), lambda rounds: rounds >= ROUNDS)
    command = [sys.executable, "-m", "pointsman", "status", "-o", "json", f"--control-socket={control}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["conditions"]
    assert [one for one in found if one["status"] != "True"] == []
    assert done.returncode == 0
    assert node.metric("pointsman_service_port_states", state="healthy") == 2
