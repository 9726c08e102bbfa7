"""Every line of observable behaviour, by mode and IP family: one proxy per configuration, all probes at once."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from tests.e2e.behaviour import Case, disagreement
from tests.e2e.matrix import SERVICES, SETTINGS, Setting
from tests.harness import lab as harness
from tests.harness.waiting import TIME_FACTOR, wait_until

from pointsman.errors import PointsmanError
from pointsman.lab import Cluster
from pointsman.lab.probe import LONG_TIMEOUT_SECONDS, TIMEOUT_SECONDS, Kind, Outcome, run_probes

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

Results = dict[tuple[str, int], list[Outcome]]


def _parameters() -> list[object]:
    return [
        pytest.param(setting, mode, family, case, id=f"{mode}-v{family}-{setting.name}-{case.id}")
        for mode in harness.MODES
        for setting in SETTINGS
        if mode in setting.modes
        for family in (4, 6)
        for case in setting.cases
        if family in case.families and case.expectation(mode) is not None
    ]


@functools.cache
def _measured(setting_name: str, mode: str, directory: Path) -> Results | PointsmanError:
    """Outcomes of every case of a setting; a proxy that failed is not started again for each of them."""
    try:
        return _measure(setting_name, mode, directory)
    except PointsmanError as failure:
        return failure


def _measure(setting_name: str, mode: str, directory: Path) -> Results:
    """One lab, one proxy, all probes."""
    setting = next(s for s in SETTINGS if s.name == setting_name)
    asked = [
        (case, family)
        for case in setting.cases
        for family in case.families
        if case.expectation(mode) is not None
    ]
    with (
        harness.build_lab() as cluster,
        harness.prepare_proxy(cluster, directory, mode, **setting.configuration) as proxy,
    ):
        proxy.write(SERVICES.values())
        proxy.start()
        proxy.wait(20 * TIME_FACTOR)
        _wait_for_listeners(cluster, asked, mode)
        results: Results = {}
        for timeout, silent in ((LONG_TIMEOUT_SECONDS, False), (TIMEOUT_SECONDS, True)):
            chosen = [(case, family) for case, family in asked if case.expects_silence(mode) is silent]
            results |= _ask(cluster, chosen, mode, timeout * TIME_FACTOR)
        return results


def _wait_for_listeners(cluster: Cluster, asked: list[tuple[Case, int]], mode: str) -> None:
    """Listeners at loopback may open a little after the rules are in force, by which the lab tells that all is there."""
    probes = []
    for case, family in asked:
        expected = case.expectation(mode)
        if case.to == "nodeport@loopback" and expected is not None and expected.kind is Kind.ANSWERED:
            probes += case.probes(SERVICES, family, mode)[:1]
    wait_until(
        lambda: run_probes(cluster, probes), lambda found: all(one.kind is Kind.ANSWERED for one in found)
    )


def _ask(cluster: Cluster, asked: list[tuple[Case, int]], mode: str, deadline: float) -> Results:
    batches = [case.probes(SERVICES, family, mode) for case, family in asked]
    outcomes = iter(run_probes(cluster, [probe for batch in batches for probe in batch], deadline))
    return {
        (case.id, family): [next(outcomes) for _ in batch]
        for (case, family), batch in zip(asked, batches, strict=True)
    }


@pytest.mark.parametrize(("setting", "mode", "family", "case"), _parameters())
def test_clients_see(
    setting: Setting, mode: str, family: int, case: Case, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.getbasetemp() / f"matrix-{mode}-{setting.name}"
    directory.mkdir(exist_ok=True)
    results = _measured(setting.name, mode, directory)
    if isinstance(results, PointsmanError):
        pytest.fail(str(results))
    assert not disagreement(case, family, mode, results[case.id, family])
