"""The rendered rule set equals what kube-proxy programmed, for every recorded scenario, step and family."""

from __future__ import annotations

import pytest
from tests.golden import compare_iptables
from tests.golden import scenario as scenarios

from pointsman.backends.iptables.render import USUAL_KERNEL, render
from pointsman.backends.iptables.settings import KernelFacts
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
