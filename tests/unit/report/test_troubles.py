"""One list of troubles, and the verdict and exit status that follow from it."""

from __future__ import annotations

from typing import Any

import pytest

from pointsman.model.findings import Code, Finding, ObjectReference, Severity
from pointsman.report.status import FamilyStatus, ReloadReport, StatusReport, WatchReport, status_text
from pointsman.report.troubles import ProxyVerdict

FAMILY = {
    "family": "IPv4",
    "last_sync_age": 1.0,
    "unhealthy": "",
    "pending": 0,
    "service_ports": 3,
    "endpoints": 3,
    "without_local_endpoints": 0,
    "rejected": {},
    "last_error": "",
    "drift_repaired": 0,
}
MANIFESTS = {
    "kind": "manifests",
    "connected": True,
    "synced": True,
    "age": 1.0,
    "objects": 3,
    "bad_objects": 0,
    "failures": 0,
    "last_error": "",
}
BROKEN = Finding(
    Code.UNREADABLE,
    Severity.ERROR,
    ObjectReference("File", "web.yaml", place="web.yaml"),
    {"detail": "line 1: expected a value"},
)


def report(
    family: dict[str, Any] | None = None, watch: dict[str, Any] | None = None, **fields: Any
) -> StatusReport:
    values: dict[str, Any] = {
        "version": "1",
        "mode": "nftables",
        "node": "n1",
        "zone": "",
        "addresses": (),
        "uptime": 1.0,
        "waiting_for": "",
        "source_trouble": "",
        "families": (FamilyStatus(**{**FAMILY, **(family or {})}),),
        "watches": (WatchReport(**{**MANIFESTS, **(watch or {})}),),
        "reload": ReloadReport(),
        "degraded": {},
    }
    return StatusReport(**{**values, **fields}).judged()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"family": {"last_error": "no memory"}}, "IPv4: last sync failed: no memory"),
        (
            {"family": {"rejected": {"shop/web:http": "Invalid argument"}}},
            "IPv4: shop/web:http was refused: Invalid argument",
        ),
        ({"watch": {"rejected": (BROKEN,), "bad_objects": 1}}, "line 1: expected a value"),
        ({"watch": {"connected": False, "last_error": "403 Forbidden"}}, "watch of manifests: 403 Forbidden"),
        (
            {"closed_ports": {"shop/web": "listen on 0.0.0.0: Address already in use"}},
            "shop/web: its health check node port is closed: listen on",
        ),
        ({"reload": ReloadReport(error="mode: unknown")}, "the new configuration is not used: mode: unknown"),
        ({"waiting_for": "the Node n1"}, "waiting for the Node n1"),
        (
            {"source_trouble": "https://10.96.0.1:443 does not answer"},
            "https://10.96.0.1:443 does not answer",
        ),
    ],
)
def test_each_trouble_is_told_and_makes_the_verdict(given: dict[str, Any], told: str) -> None:
    found = report(**given)
    (message,) = [trouble.message for trouble in found.troubles]
    assert told in message
    assert (found.verdict, found.exit_status) == (ProxyVerdict.TROUBLE, 1)
    text = status_text(found)
    assert f"✗ {message}" in text
    assert "✓" not in text


def test_what_is_only_degraded_is_no_trouble_and_not_well_either() -> None:
    found = report(degraded={"oom_score_adj": "not permitted"})
    assert (found.verdict, found.exit_status) == (ProxyVerdict.DEGRADED, 0)
    text = status_text(found)
    assert "! degraded: oom_score_adj: not permitted" in text
    assert "✓" not in text


def test_kinds_of_which_a_proxy_has_no_use_are_no_trouble() -> None:
    found = report(watch={"passed_over": {"Deployment": 1, "Ingress": 2}})
    assert found.verdict is ProxyVerdict.FINE
    assert "1 Deployment, 2 Ingress" in status_text(found)
