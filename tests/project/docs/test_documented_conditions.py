"""Every condition type in the source is described in docs/operations.md."""

from __future__ import annotations

import re

from tests.project.docs.test_architecture import PACKAGE, ROOT

TYPE = re.compile(
    r'(?:Condition\.(?:true|false|unknown)\(\s*|type_(?:, message)? = )f?"([A-Z][A-Za-z]+)[{"]'
    r'|return f"([A-Z][A-Za-z]+)\{|return "([A-Z][A-Za-z]+)" \+'
    r'|^(?:STARTED|NODE_ELIGIBLE|RUNNING|_API_SERVER) = "(\w+)"',
    re.MULTILINE,
)


def test_every_condition_type_is_documented() -> None:
    sources = [path for path in PACKAGE.rglob("*.py") if "pointsman.conditions" in path.read_text()]
    sources.append(PACKAGE / "conditions.py")
    found = {name for path in sources for groups in TYPE.findall(path.read_text()) for name in groups if name}
    assert {"Started", "SyncProgress", "Sync", "Rules", "Watch", "FlowCleanup", "OOMScore", "Sysctl"} <= found
    table = (ROOT / "docs/operations.md").read_text().partition("## Conditions")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `([A-Za-z]+?)(?:IPv4|Service|NfConntrackMax)?`", table, re.MULTILINE)
    assert found - set(documented) == set()
