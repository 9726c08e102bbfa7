"""Every type and reason of a condition in the source is in the table from which docs/conditions.md is made."""

from __future__ import annotations

import re

from scripts.conditions import PAGE, render_document
from tests.project.docs.test_architecture import PACKAGE

from pointsman.conditions import Condition
from pointsman.model.findings import Code
from pointsman.wording.conditions import CONDITION_TYPES

TYPE = re.compile(
    r'(?:(?:Condition\.(?:true|false|unknown)|build_condition)\(\s*|type_(?:, message)? = )f?"([A-Z][A-Za-z]+)[{"]'
    r'|return f"([A-Z][A-Za-z]+)\{|return "([A-Z][A-Za-z]+)" \+'
    r'|^(?:STARTED|NODE_ELIGIBLE|RUNNING|_API_SERVER) = "(\w+)"',
    re.MULTILINE,
)
REASON = re.compile(
    r'Condition\.(?:false|unknown)\(\s*[^,]+,\s*"([A-Z][A-Za-z]+)"|_unreachable\("(\w+)"|return "([A-Z]\w+)", f'
)
CODE = re.compile(r"build_error\(\s*Code\.(\w+)|Code\.(CONNTRACK_\w+)")
SOURCES = {path: path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "findings.py"}


def find_names(pattern: re.Pattern[str]) -> set[str]:
    """Return what the pattern finds in modules that make conditions."""
    texts = (text for path, text in SOURCES.items() if "Condition" in text and "wording" not in path.parts)
    return {name for text in texts for groups in pattern.findall(text) for name in groups if name}


def test_the_document_is_made_from_the_table() -> None:
    assert PAGE.read_text() == render_document(), "run scripts/conditions.py"


def test_every_type_in_the_source_is_in_the_table_and_the_other_way_round() -> None:
    assert find_names(TYPE) == {row.name for row in CONDITION_TYPES}


def test_every_reason_in_the_source_is_in_the_table_and_the_other_way_round() -> None:
    checks = (PACKAGE / "node/host_conditions.py").read_text()
    codes = {Code[name].value for groups in CODE.findall(checks) for name in groups if name}
    listed = {reason for row in CONDITION_TYPES for reason in row.reasons}
    assert find_names(REASON) | codes <= listed
    everything = "".join(text for path, text in SOURCES.items() if "wording" not in path.parts)
    made = {name for name in listed if f'"{name}"' in everything or name in set(Code)}
    assert listed == made


def test_a_condition_without_a_remedy_of_its_own_has_that_of_the_table() -> None:
    assert "resources.limits.memory" in Condition.false("Memory", "NearLimit", "").remedy
    assert "LimitNOFILE" in Condition.false("Descriptors", "NearLimit", "").remedy
    assert Condition.false("SyncIPv4", "SyncFailed", "", "restart").remedy == "restart"
    assert Condition.false("SysctlUdpTimeout", "NotWritable", "").remedy
