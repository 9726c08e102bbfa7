"""The rendered state equals what kube-proxy left in the kernel, for every recorded scenario, step and family.

The kernel itself is asked inside User-mode Linux (tests/kernel/uml); this needs none and runs everywhere.
"""

from __future__ import annotations

import pytest
from tests.golden import compare_ipvs
from tests.golden import scenario as scenarios

from pointsman.backends.ipvs import render
from pointsman.model.addresses import Family

SAVES = {Family.IPV4: "iptables-save.txt", Family.IPV6: "ip6tables-save.txt"}


def _foreign(step: scenarios.Step) -> set[str]:
    """Virtual servers that were there before kube-proxy and are protected by excludeCIDRs."""
    return {"-t 192.0.2.5:80"} if "ipvs-exclude-cidrs" in step.directory.parts else set()


@pytest.mark.parametrize("name", scenarios.scenario_names("ipvs"))
def test_rendered_state_equals_the_recording(name: str) -> None:
    scenario = scenarios.load(name)
    by_family = {family: list(scenarios.requests(scenario, "ipvs", family)) for family in Family}
    for number, step in enumerate(scenario.steps):
        recorded = step.directory / "ipvs"
        ipv4_only = not (recorded / SAVES[Family.IPV6]).exists()
        families = [Family.IPV4] if ipv4_only else list(Family)
        requests = {family: by_family[family][number][1] for family in families}
        desired = {
            f: render.build_ledger(r, scenario.config.ipvs.scheduler or "rr") for f, r in requests.items()
        }

        servers = "".join(render.render_servers(desired[f]) for f in families)
        expected = compare_ipvs.virtual_servers(
            (recorded / "ipvsadm-save.txt").read_text(), ipv4_only=ipv4_only
        )
        expected = {key: value for key, value in expected.items() if key not in _foreign(step)}
        found = compare_ipvs.differences("ipvs", expected, compare_ipvs.virtual_servers(servers))

        sets = "".join(render.render_sets(desired[f], f) for f in families)
        expected = compare_ipvs.ip_sets((recorded / "ipset-save.txt").read_text(), ipv4_only=ipv4_only)
        found += compare_ipvs.differences("ipset", expected, compare_ipvs.ip_sets(sets))

        for family in families:
            rules = render.render_rules(desired[family], requests[family].context)
            expected = compare_ipvs.rules((recorded / SAVES[family]).read_text())
            found += compare_ipvs.differences(family.value, expected, compare_ipvs.rules(rules))

        lines = sorted(f"{line} global" for f in families for line in render.render_addresses(desired[f]))
        expected = compare_ipvs.addresses((recorded / "kube-ipvs0.json").read_text(), ipv4_only=ipv4_only)
        found += compare_ipvs.differences("addresses", expected, {"kube-ipvs0": lines})
        assert found == [], step.name
