"""docs/annotations.md and docs/events.md name what the source names, and nothing else."""

from __future__ import annotations

import re

from tests.project.docs.test_architecture import PACKAGE, ROOT

from pointsman.model.findings import Code

SOURCE = "\n".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
REASON = re.compile(r'(?:node_event|Announcement)\(\s*"(\w+)"|"(FailedToStart\w+)"')


def read_first_column(name: str) -> set[str]:
    """Return what is marked as code in the first cell of every row."""
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / name).read_text(), re.MULTILINE)
    return {found for cell in rows for found in re.findall(r"`([^`]+)`", cell)}


def test_every_annotation_is_listed_and_no_other() -> None:
    constants = set(re.findall(r'^\w+_(?:ANNOTATION|LABEL) = "(.+)"$', SOURCE, re.MULTILINE))
    assert len(constants) > 9
    assert read_first_column("annotations.md") == constants


def test_every_reason_of_an_event_is_listed_and_no_other() -> None:
    literals = {name for groups in REASON.findall(SOURCE) for name in groups if name}
    assert len(literals) >= 8
    documented = read_first_column("events.md")
    assert literals <= documented
    assert documented - literals <= set(Code)
