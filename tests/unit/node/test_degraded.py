"""A degraded check has one fate: its metric, its log line and its status line come and go together."""

from __future__ import annotations

import pytest

from pointsman.kernel.sysctl import Degraded
from pointsman.node.degraded import DegradedChecks
from pointsman.obs.registry import Metrics

SCORE = Degraded("oom_score_adj", "not permitted")
SYSCTL = Degraded("sysctl route_localnet", "cannot be written")


class Checks:
    """The owner of checks, and what it shows where."""

    def __init__(self) -> None:
        self.metrics = Metrics("iptables")
        self.owner = DegradedChecks(self.metrics)

    @property
    def measured(self) -> dict[str, float]:
        lines = self.metrics.exposition().decode().splitlines()
        samples = [line for line in lines if line.startswith("pointsman_degraded{")]
        return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in samples}


def test_what_a_source_no_longer_names_has_recovered() -> None:
    checks = Checks()
    checks.owner.report("host settings", [SCORE, SYSCTL])
    assert checks.owner.current == {SCORE.check: SCORE.message, SYSCTL.check: SYSCTL.message}
    assert checks.measured == {SCORE.check: 1, SYSCTL.check: 1}
    checks.owner.report("host settings", [SCORE])
    assert checks.owner.current == {SCORE.check: SCORE.message}
    assert checks.measured == {SCORE.check: 1, SYSCTL.check: 0}
    checks.owner.report("host settings", [])
    assert checks.owner.current == {}
    assert checks.measured == {SCORE.check: 0, SYSCTL.check: 0}


def test_sources_do_not_clear_what_others_found() -> None:
    checks = Checks()
    checks.owner.report("host settings", [SCORE])
    checks.owner.report("IPv4 sync", [SYSCTL])
    checks.owner.report("host settings", [])
    assert checks.owner.current == {SYSCTL.check: SYSCTL.message}


def test_a_check_is_logged_when_it_fails_and_when_it_recovers_and_not_in_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    checks = Checks()
    with caplog.at_level("INFO"):
        for found in ([SYSCTL], [SYSCTL], [SYSCTL], [], []):
            checks.owner.report("IPv4 sync", found)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["Degraded", "No"]
