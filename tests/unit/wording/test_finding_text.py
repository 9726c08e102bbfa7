"""Every code has text, and the text names the parameters that its finding has."""

from __future__ import annotations

import msgspec
import pytest

from pointsman.model.findings import Code, Finding, ObjectReference, Severity, build_bad_annotation
from pointsman.wording import findings
from pointsman.wording.findings import describe, render_finding, render_message


def test_every_code_has_a_message() -> None:
    assert set(findings._MESSAGES) == set(Code)


def test_a_finding_is_described_once() -> None:
    finding = describe(Finding(Code.CONTESTED_NODE_PORT, parameters={"nodePort": 30080, "holder": "a/b:c"}))
    assert finding.message == "node port 30080 is served by a/b:c"
    assert finding.remedy.startswith("one address, protocol and port")
    assert describe(finding) is finding


@pytest.mark.parametrize(
    ("used", "text"), [("", "'a' is ignored; expected x"), ("all", "'a' is read as 'all'; expected x")]
)
def test_a_bad_annotation_says_what_it_counts_as(used: str, text: str) -> None:
    assert render_message(build_bad_annotation("n", "a", "x", used)) == f"annotation n: {text}"


def test_place_and_object_come_before_the_message() -> None:
    web = ObjectReference("Service", "shop/web", place="web.yaml")
    invalid = Finding(Code.INVALID, Severity.ERROR, web, {"detail": "spec.ports: required"})
    assert render_finding(invalid) == "web.yaml: Service shop/web: spec.ports: required"


def test_the_code_of_another_version_keeps_its_message() -> None:
    sent = b'{"code": "FromTheFuture", "severity": "error", "message": "it rains"}'
    received = msgspec.json.decode(sent, type=Finding)
    assert (received.code, render_message(received)) == (Code.UNKNOWN, "it rains")
