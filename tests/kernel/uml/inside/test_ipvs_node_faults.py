"""Faults of the node around a whole proxy in ipvs mode: named, and Services are served again when they are gone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import NODE_IP6, LabNode, NodeProcess
from tests.harness.waiting import wait_until

TABLE_SIZE = Path("/proc/sys/net/netfilter/nf_conntrack_max")
"""Of all network namespaces; only the first one of a machine may set it, which is that of these tests."""
WEB = (web_service(), *web_slices(), node_object())
LATER = (web_service("later", 20), *web_slices("later"))
SECONDS = 240.0
"""User-mode Linux is slow."""


@pytest.fixture
def node() -> Iterator[LabNode]:
    made = LabNode()
    yield made
    made.close()


@pytest.fixture
def process(node: LabNode, tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(node, tmp_path)
    made.configure(mode="ipvs", ipvs={"minSyncPeriod": "50ms", "syncPeriod": "5s"})
    made.objects(*WEB)
    with node.backend():
        made.start(f"--control-socket={tmp_path / 'control.sock'}")
        node.wait_served("10.96.0.10", seconds=SECONDS)
        yield made
        made.stop()


def failing(process: NodeProcess) -> dict[str, Any]:
    """Return the conditions that are false, by type. Probes over HTTP need a tracked connection themselves."""
    command = (
        "-m",
        "pointsman",
        "status",
        "-o",
        "json",
        f"--control-socket={process.directory}/control.sock",
    )
    done = subprocess.run((sys.executable, *command), capture_output=True, text=True, check=False)
    return {one["type"]: one for one in json.loads(done.stdout)["conditions"] if one["status"] == "False"}


def test_a_full_connection_tracking_table_is_named_until_it_has_room(
    node: LabNode, process: NodeProcess
) -> None:
    before = TABLE_SIZE.read_text()
    TABLE_SIZE.write_text("1")
    try:
        found = wait_until(
            lambda: failing(process), lambda found: "ConnectionTracking" in found, seconds=SECONDS
        )
        assert found["ConnectionTracking"]["reason"] == "ConntrackFull"
        assert node.is_unreachable("10.96.0.10"), "the kernel drops new connections"
    finally:
        TABLE_SIZE.write_text(before)
    node.wait_served("10.96.0.10", seconds=SECONDS)
    wait_until(lambda: failing(process), lambda found: not found, seconds=SECONDS)


def test_an_ip_family_that_disappears_leaves_the_other_served_and_comes_back(
    node: LabNode, process: NodeProcess
) -> None:
    node.wait_served("fd00:10:96::10", seconds=SECONDS)
    node.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
    process.objects(*WEB, *LATER)
    node.wait_served("10.96.0.20", seconds=SECONDS)
    node.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0")
    node.run("ip", "address", "add", f"{NODE_IP6}/64", "dev", "eth0", "nodad")
    node.run("ip", "-6", "route", "add", "default", "dev", "eth0")
    node.wait_served("fd00:10:96::20", seconds=SECONDS)
