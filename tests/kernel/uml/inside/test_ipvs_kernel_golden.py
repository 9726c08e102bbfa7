"""What the kernel holds after our syncs equals what it held after kube-proxy's, for every recorded scenario."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.golden import compare_ipvs
from tests.golden import scenario as scenarios
from tests.kernel.uml.inside.tools import Dump, MakeBackend

from pointsman.backends import mode_named
from pointsman.backends.contract import Setup
from pointsman.backends.ipvs.apply import IpvsBackend, IpvsSettings
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family, cidr_from_text

SAVES = {Family.IPV4: "iptables-save.txt", Family.IPV6: "ip6tables-save.txt"}
COMPARED_SYSCTLS = (
    "net.ipv4.ip_forward",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.route_localnet",
    "net.ipv4.vs.conntrack",
    "net.ipv4.vs.conn_reuse_mode",
    "net.ipv4.vs.expire_nodest_conn",
    "net.ipv4.vs.expire_quiescent_template",
)


WITH_TIMEOUTS = ("empty", "ipvs-timeouts")
INCREMENTAL = ("everything", "seq-ports-changed", "seq-rollout", "seq-type-changed", "seq-service-deleted")


def _families(scenario: scenarios.Scenario) -> list[Family]:
    """Recordings without IPv6 objects were made without IPv6."""
    both = (scenario.steps[0].directory / "ipvs" / SAVES[Family.IPV6]).exists()
    return list(Family) if both else [Family.IPV4]


def _settings(scenario: scenarios.Scenario) -> IpvsSettings:
    config = scenario.config.ipvs
    excluded = (cidr_from_text(text) for text in config.exclude_cidrs)
    return IpvsSettings(
        scheduler=config.scheduler or "rr", exclude_cidrs=tuple(cidr for cidr in excluded if cidr is not None)
    )


def _run_before(scenario: scenarios.Scenario) -> None:
    """Commands that the notes say were run before kube-proxy started."""
    _, _, section = scenario.notes.partition("Before kube-proxy starts:")
    for line in section.splitlines():
        if line.startswith("- `"):
            subprocess.run(line[3:].rstrip("`").split(), check=True, capture_output=True)


def _assert_recorded(step: scenarios.Step, families: list[Family], dump: Dump) -> None:
    recorded, only = step.directory / "ipvs", len(families) == 1
    compared = [
        ("ipvs", compare_ipvs.virtual_servers, "ipvsadm-save.txt", dump.servers()),
        ("ipset", compare_ipvs.ip_sets, "ipset-save.txt", dump.sets()),
        ("addresses", compare_ipvs.addresses, "kube-ipvs0.json", dump.addresses()),
    ]
    found: list[str] = []
    for what, form, file, actual in compared:
        expected = form((recorded / file).read_text(), ipv4_only=only)
        found += compare_ipvs.differences(what, expected, form(actual, ipv4_only=only))
    for family in families:
        expected = compare_ipvs.rules((recorded / SAVES[family]).read_text())
        found += compare_ipvs.differences(family.value, expected, compare_ipvs.rules(dump.rules(family)))
    assert found == [], step.name


def _assert_settings(step: scenarios.Step, dump: Dump | None) -> None:
    recorded = dict(
        line.split(" = ") for line in (step.directory / "ipvs" / "sysctls.txt").read_text().splitlines()
    )
    for name in COMPARED_SYSCTLS:
        assert (Path("/proc/sys") / name.replace(".", "/")).read_text().strip() == recorded[name], name
    if dump is not None:
        recorded_timeouts = (step.directory / "ipvs" / "ipvsadm-timeout.txt").read_text()
        assert dump("ipvsadm", "-L", "--timeout") == recorded_timeouts


def _prepare(scenario: scenarios.Scenario, families: list[Family]) -> None:
    sysctls = Sysctls()
    mode_named("ipvs").prepare(Setup(scenario.config), sysctls, families)
    assert sysctls.conditions() == ()


def _replay(
    scenario: scenarios.Scenario, families: list[Family], make_backend: MakeBackend
) -> scenarios.Replay:
    backends: list[IpvsBackend] = [make_backend(family, _settings(scenario)) for family in families]
    return scenarios.Replay(scenario, "ipvs", backends)


@pytest.mark.parametrize("name", scenarios.scenario_names("ipvs"))
def test_kernel_holds_what_was_recorded(
    node: Namespace, make_backend: MakeBackend, dump: Dump, name: str
) -> None:
    scenario = scenarios.load(name)
    families = _families(scenario)
    _run_before(scenario)
    _prepare(scenario, families)
    running = _replay(scenario, families, make_backend)
    for step in scenario.steps:
        if step.restarted:
            running = _replay(scenario, families, make_backend)
        for outcome in running.advance(step).values():
            assert not outcome.report.rejected
        _assert_recorded(step, families, dump)
    _assert_settings(scenario.steps[-1], dump if name in WITH_TIMEOUTS else None)


@pytest.mark.parametrize("name", INCREMENTAL)
def test_small_steps_lead_to_the_recorded_state(
    node: Namespace, make_backend: MakeBackend, dump: Dump, name: str
) -> None:
    """From no services at all, and then on, by changes alone; verifying finds nothing on the way."""
    scenario = scenarios.load(name)
    families = _families(scenario)
    running = _replay(scenario, families, make_backend)
    running.advance(msgspec.structs.replace(scenario.steps[0], services={}, slices={}))
    for step in scenario.steps:
        for family, outcome in running.advance(step).items():
            assert not outcome.report.full
            reconciler = running.reconcilers[family]
            taken, context = reconciler.snapshot(), outcome.context
            assert reconciler.prepare_comparison(taken, context).differences() == []
            for one in taken.plans:
                assert reconciler.prepare_comparison(taken, context, [one]).differences() == []
            assert running.reconcilers[family].backend.find_drift() is None
        _assert_recorded(step, families, dump)
