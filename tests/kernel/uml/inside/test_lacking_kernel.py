"""What a kernel with ip_vs means for preflight and clean-up: one without nf_tables, and one that has both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.lab import build_lab
from tests.kernel.uml.inside.tools import HAS_LEGACY, SAVE
from tests.kernel.uml.inside.world import IpvsWorld

from pointsman.backends import mode_named
from pointsman.backends.contract import Setup
from pointsman.config.types import KubeProxyConfiguration
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.iptables_programs import LEGACY, NFT, OVERRIDE
from pointsman.lab.cluster import Cluster
from pointsman.lab.objects import LabService, backends
from pointsman.model.addresses import Family

WEB = LabService("web", 1, backends("pod1", "pod2"), type="LoadBalancer", external=True)


def _has_nf_tables() -> bool:
    return subprocess.run(("nft", "list", "tables"), capture_output=True).returncode == 0


@pytest.fixture
def _without_nf_tables() -> None:
    if _has_nf_tables():
        pytest.skip("about kernels without nf_tables; this one has it")


@pytest.fixture
def _with_nf_tables() -> None:
    if not _has_nf_tables():
        pytest.skip("about kernels with nf_tables; this one has none")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with build_lab() as made:
        yield made


@pytest.mark.usefixtures("_without_nf_tables")
def test_the_command_cleans_up_on_a_kernel_without_nf_tables(
    cluster: Cluster, iptables: dict[Family, Iptables], tmp_path: Path
) -> None:
    world = IpvsWorld(cluster, iptables)
    try:
        world.apply([WEB])
        assert "KUBE-SERVICES" in world.in_node(SAVE[Family.IPV4])
    finally:
        world.close()
    command = (sys.executable, "-m", "pointsman", "cleanup", f"--state-dir={tmp_path}")
    with cluster["n1"].entered():
        done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "removed device kube-ipvs0\n" in done.stdout
    assert world.in_node("ipvsadm", "-Sn") == world.in_node("ipset", "save") == ""
    for tool in SAVE.values():
        assert "KUBE-" not in world.in_node(tool)


@pytest.mark.usefixtures("_without_nf_tables")
def test_preflight_tells_which_modes_a_kernel_without_nf_tables_can_run(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, LEGACY)
    setup = Setup(KubeProxyConfiguration())
    with cluster["n1"].entered():
        for family in Family:
            assert mode_named("ipvs").preflight(setup, family) == []
            assert mode_named("iptables").preflight(setup, family) == []
            assert any("nf_tables" in problem for problem in mode_named("nftables").preflight(setup, family))
        monkeypatch.setenv(OVERRIDE, NFT)
        (problem,) = mode_named("iptables").preflight(setup, Family.IPV4)
    assert "iptables-nft" in problem


@pytest.mark.usefixtures("_with_nf_tables")
def test_preflight_finds_nothing_wrong_with_a_kernel_that_has_everything(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(KubeProxyConfiguration())
    with cluster["n1"].entered():
        for variant in (NFT, LEGACY) if HAS_LEGACY else (NFT,):
            monkeypatch.setenv(OVERRIDE, variant)
            for family in Family:
                for mode in ("nftables", "iptables", "ipvs"):
                    assert mode_named(mode).preflight(setup, family) == []
