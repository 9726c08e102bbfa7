"""The rendered rule set equals what kube-proxy programmed, for every recorded scenario, step and family."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fake.iptables_tables import IptablesTables
from tests.golden import compare_iptables
from tests.golden import scenario as scenarios

from pointsman.backends.iptables.apply import ROUTE_LOCALNET, TCP_BE_LIBERAL, IptablesBackend
from pointsman.backends.iptables.render import USUAL_KERNEL, render
from pointsman.backends.iptables.static import KernelFacts
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family

SAVES = {Family.IPV4: "iptables-save.txt", Family.IPV6: "ip6tables-save.txt"}


def _facts(step: scenarios.Step) -> KernelFacts:
    liberal = "tcp_be_liberal = 1" in (step.directory / "iptables" / "sysctls.txt").read_text()
    return KernelFacts(counters=USUAL_KERNEL.counters, tcp_be_liberal=liberal)


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
@pytest.mark.parametrize("name", scenarios.scenario_names("iptables"))
def test_rendered_rules_equal_the_recording(name: str, family: Family) -> None:
    scenario = scenarios.load(name)
    for step, request in scenarios.requests(scenario, "iptables", family):
        text = render(
            request,
            localhost_node_ports=scenario.config.iptables.localhost_node_ports is not False,
            facts=_facts(step),
        )
        expected = (step.directory / "iptables" / SAVES[family]).read_text()
        assert compare_iptables.differences(expected, text) == [], step.name


@pytest.mark.parametrize("way", ["full", "partial"])
@pytest.mark.parametrize("name", scenarios.scenario_names("iptables"))
def test_syncs_over_tables_in_memory_end_as_recorded(name: str, way: str, tmp_path: Path) -> None:
    scenario = scenarios.load(name)
    _provide_sysctls(tmp_path, _facts(scenario.steps[0]))
    tables = IptablesTables()
    backend = IptablesBackend(
        Family.IPV4,
        runner=Iptables(Family.IPV4, tables),
        sysctls=Sysctls(tmp_path),
        localhost_node_ports=scenario.config.iptables.localhost_node_ports is not False,
        ensure_counter=lambda counter: None,
    )
    replay = scenarios.Replay(scenario, "iptables", [backend])
    for step in scenario.steps:
        replay.advance(step, full=way == "full")
        expected = (step.directory / "iptables" / SAVES[Family.IPV4]).read_text()
        held = "".join(tables.saved(table) for table in tables.tables)
        assert compare_iptables.differences(expected, held) == [], step.name


def _provide_sysctls(root: Path, facts: KernelFacts) -> None:
    for name, value in (
        (ROUTE_LOCALNET, "0"),
        (TCP_BE_LIBERAL, str(int(facts.tcp_be_liberal))),
    ):
        path = root / "proc" / "sys" / name
        path.parent.mkdir(parents=True)
        path.write_text(value)
