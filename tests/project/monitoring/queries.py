"""The queries that ship, from the rules, the dashboard and the documentation, and the names they ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy/monitoring"
RULES: dict[str, Any] = yaml.safe_load((MONITORING / "rules.yaml").read_text())
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
DOCUMENT = (ROOT / "docs/metrics.md").read_text()

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LABELS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_NAME = re.compile(r"(?<![\w:$.])([a-zA-Z_:][\w:]*)(?!\s*\(|[\w:])")
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
MADE_BY_PROMETHEUS = {"up"}


def rules() -> dict[str, str]:
    """Expressions by the name of their alert or recorded series."""
    return {
        rule.get("alert", rule.get("record")): rule["expr"]
        for group in RULES["groups"]
        for rule in group["rules"]
    }


def recorded() -> set[str]:
    """Names of recorded series, which have colons as no metric of ours has."""
    return {name for name in rules() if ":" in name}


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def dashboard() -> dict[str, str]:
    """Expressions by panel and letter, as Prometheus gets them."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
        for panel in panels()
        for target in panel["targets"]
    }


def variables() -> dict[str, str]:
    """The metric that each list of choices is made from."""
    queries = {
        variable["name"]: variable["query"]["query"]
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    }
    return {name: query.removeprefix("label_values(").rpartition(",")[0] for name, query in queries.items()}


def metric_names(expression: str) -> set[str]:
    """Every metric an expression reads."""
    bare = _STRING.sub('""', expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    bare = _LABELS.sub(" ", bare)
    return set(_NAME.findall(bare)) - _WORDS - MADE_BY_PROMETHEUS


def grouping_labels(expression: str) -> set[str]:
    """Every label an expression groups or matches by."""
    return {
        name.strip() for names in _LABELS.findall(expression) for name in names.split(",") if name.strip()
    }
