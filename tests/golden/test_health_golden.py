"""Health check node ports say what kube-proxy's said, for every recorded scenario and step that has one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden import scenario as scenarios

from pointsman.model.addresses import Family
from pointsman.model.tracker import Tracker

MODES = ("iptables", "nftables")


def _recorded(step: scenarios.Step, mode: str) -> dict[str, int]:
    """Local endpoints by Service as answered on the node's IPv4 address; an empty answer is a closed port."""
    answers: dict[str, int] = {}
    for path in (step.directory / mode).glob("health-*.txt"):
        body = path.read_text().partition("\n\n")[2]
        if body:
            said = json.loads(body)
            answers[f"{said['service']['namespace']}/{said['service']['name']}"] = said["localEndpoints"]
    return answers


def _with_health_ports(mode: str) -> list[str]:
    found = {path.relative_to(scenarios.DATA).parts[0] for path in scenarios.DATA.rglob(f"{mode}/listen.txt")}
    return sorted(found)


@pytest.mark.parametrize(
    ("mode", "name"), [(mode, name) for mode in MODES for name in _with_health_ports(mode)]
)
def test_the_same_services_answer_with_the_same_counts(mode: str, name: str) -> None:
    for step in scenarios.load(name).steps:
        tracker = Tracker(Family.IPV4, scenarios.NODE_NAME)
        for service in step.services.values():
            tracker.upsert_service(service)
        for endpoint_slice in step.slices.values():
            tracker.upsert_slice(endpoint_slice)
        counts = {port.name.key: count for port, count in tracker.count_local_ready()}
        assert counts == _recorded(step, mode), step.name


def test_recordings_with_health_check_ports_exist() -> None:
    assert "health-per-address" in _with_health_ports("iptables")
    assert (
        Path(scenarios.DATA / "healthcheck-port-without-policy" / "iptables" / "listen.txt").read_text() == ""
    )
