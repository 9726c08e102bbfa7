"""Clean-up on a kernel that lacks nf_tables: there is nothing of it to remove, and everything else goes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.uml.inside.world import World, lab

from pointsman.kernel.iptables import Iptables
from pointsman.lab.cluster import Cluster
from pointsman.lab.objects import LabService, backends
from pointsman.model.addresses import Family

WEB = LabService("web", 1, backends("pod1", "pod2"), type="LoadBalancer", external=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with lab() as made:
        yield made


def test_the_command_cleans_up_on_a_kernel_without_nf_tables(
    cluster: Cluster, iptables: dict[Family, Iptables], tmp_path: Path
) -> None:
    world = World(cluster, iptables)
    try:
        world.apply([WEB])
        assert "KUBE-SERVICES" in world.in_node("iptables-legacy-save")
    finally:
        world.close()
    command = (sys.executable, "-m", "pointsman", "cleanup", f"--state-dir={tmp_path}")
    with cluster["n1"].entered():
        assert subprocess.run(("nft", "list", "tables"), capture_output=True).returncode != 0
        done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "removed device kube-ipvs0\n" in done.stdout
    assert world.in_node("ipvsadm", "-Sn") == world.in_node("ipset", "save") == ""
    for tool in ("iptables-legacy-save", "ip6tables-legacy-save"):
        assert "KUBE-" not in world.in_node(tool)
