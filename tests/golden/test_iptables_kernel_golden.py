"""What the kernel holds after our syncs equals what it held after kube-proxy's: both families, variants and ways to sync."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.golden import compare_iptables
from tests.golden import scenario as scenarios
from tests.golden.recorded_node import recorded_node

from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family

pytestmark = pytest.mark.kernel

SAVES = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
COMPARED_SYSCTLS = ("net.ipv4.conf.all.route_localnet", "net.netfilter.nf_conntrack_tcp_be_liberal")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    # The lock file is shared by all namespaces of a machine; tests that run side by side get their own.
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "xtables.lock"))
    with recorded_node() as namespace:
        yield namespace


def _backends(scenario: scenarios.Scenario, variant: str) -> list[IptablesBackend]:
    commands = SystemCommands()
    return [
        IptablesBackend(
            family,
            runner=Iptables(family, commands, variant=variant),
            sysctls=Sysctls(),
            localhost_node_ports=scenario.config.iptables.localhost_node_ports is not False,
        )
        for family in Family
    ]


def _sysctls_of(step: scenarios.Step) -> dict[str, str]:
    lines = (step.directory / "iptables" / "sysctls.txt").read_text().splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def _assert_recorded(step: scenarios.Step, variant: str) -> None:
    for program in SAVES.values():
        saved = subprocess.run(
            [f"{program}-{variant}-save"], capture_output=True, text=True, check=True
        ).stdout
        expected = (step.directory / "iptables" / f"{program}-save.txt").read_text()
        assert compare_iptables.differences(expected, saved) == [], f"{step.name} {program}"
    for name in COMPARED_SYSCTLS:
        found = (Path("/proc/sys") / name.replace(".", "/")).read_text().strip()
        assert found == _sysctls_of(step)[name], name


@pytest.mark.parametrize("way", ["full", "partial"])
@pytest.mark.parametrize("variant", ["nft", "legacy"])
@pytest.mark.parametrize("name", scenarios.scenario_names("iptables"))
def test_kernel_holds_what_was_recorded(node: Namespace, name: str, variant: str, way: str) -> None:
    scenario = scenarios.load(name)
    liberal = _sysctls_of(scenario.steps[0])["net.netfilter.nf_conntrack_tcp_be_liberal"]
    node.write_sysctls({"net/netfilter/nf_conntrack_tcp_be_liberal": liberal})
    replay = scenarios.Replay(scenario, "iptables", _backends(scenario, variant))
    contexts = {}
    if way == "partial":
        first = replay.advance(msgspec.structs.replace(scenario.steps[0], services={}, slices={}))
        contexts = {family: outcome.context for family, outcome in first.items()}
    for step in scenario.steps:
        if step.restarted:
            replay = scenarios.Replay(scenario, "iptables", _backends(scenario, variant))
            contexts = {}
        outcomes = replay.advance(step, full=way == "full")
        _assert_recorded(step, variant)
        for family, outcome in outcomes.items():
            assert not outcome.report.rejected
            assert outcome.report.full is (way == "full" or contexts.get(family) != outcome.context)
            reconciler = replay.reconcilers[family]
            comparison = reconciler.prepare_comparison(reconciler.snapshot(), outcome.context)
            assert comparison.differences() == []
            contexts[family] = outcome.context
