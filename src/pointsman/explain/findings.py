"""Objects and files that the source could not use, as causes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.explain.report import Cause
from pointsman.explain.view import View
from pointsman.model.findings import DOCUMENT, FILE, Finding
from pointsman.wording.findings import render_finding, render_message

_MEND = "correct it; until then the last good version, if there was one, stays in use"


def rejected_services(view: View) -> frozenset[str]:
    """Keys of Services that exist and cannot be used as they are."""
    return frozenset(
        finding.object.key
        for finding in view.source_findings
        if finding.is_error and finding.object.kind == "Service" and finding.object.key
    )


def service_findings(view: View, key: str, *, served: bool) -> Iterator[Cause]:
    """What the source found in a Service, and in the EndpointSlices of its namespace, which may be its own."""
    namespace = key.partition("/")[0]
    for finding in view.source_findings:
        rejected = finding.is_error
        if finding.object.kind == "Service" and finding.object.key == key:
            what = "cannot be used" if rejected else "is used"
            message = f"Service {key} {what}: {_told(finding)}"
            yield Cause(finding.code.value, message, _MEND if rejected else "", fatal=rejected and not served)
        elif finding.object.kind == "EndpointSlice" and finding.object.key.partition("/")[0] == namespace:
            message = f"EndpointSlice {finding.object.key} cannot be used: {_told(finding)}"
            yield Cause(finding.code.value, message, _MEND, fatal=False)


def file_findings(view: View) -> Iterator[Cause]:
    """Files, and parts of files, of which nobody knows what they were to hold."""
    for finding in view.source_findings:
        if finding.object.kind in (FILE, DOCUMENT):
            yield Cause(
                finding.code.value, render_finding(finding), "what was asked for may be in there", fatal=False
            )


def _told(finding: Finding) -> str:
    message = render_message(finding)
    return f"{message} ({finding.object.place})" if finding.object.place else message
