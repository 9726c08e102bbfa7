"""ARCHITECTURE.md names files and names that exist, and draws the layers that are checked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "pointsman"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
FILES = sorted(set(re.findall(r"`([a-z_]+/[a-z0-9_/]+\.py)`", TEXT)))


def _section(heading: str) -> str:
    return TEXT.partition(f"## {heading}")[2].partition("\n## ")[0]


def test_named_files_exist() -> None:
    assert len(FILES) > 30
    assert [name for name in FILES if not (PACKAGE / name).exists()] == []


def test_every_name_in_the_walk_and_the_process_is_defined_in_a_file_named_beside_it() -> None:
    walk = [row for row in _section("An EndpointSlice event").splitlines() if row.startswith("|")]
    assert len(walk) > 13
    for line in (*walk, _section("The process")):
        sources = [(PACKAGE / name).read_text() for name in re.findall(r"`([a-z_]+/[a-z0-9_/]+\.py)`", line)]
        for name in re.findall(r"`(\w+)`", line):
            defined = rf"^ *(?:async )?(?:def|class) {name}\b|^ *(?:from .* )?import .*\b{name}\b"
            known = any(re.search(defined, source, re.MULTILINE) for source in sources)
            assert known or name in WORDS or not sources, f"{name}: {line}"


WORDS = {"web", "status"}
"""Marked as code without being a name of ours."""


def test_the_drawn_layers_are_the_checked_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]["layers"]
    checked = [{name.strip() for name in layer.split("|")} for layer in contract]
    lines = re.findall(r"^ .*$", _section("Layers"), re.MULTILINE)
    drawn = [set(re.findall(r"\w+", line.strip().partition("  ")[0])) for line in lines]
    assert drawn == [layer for layer in checked if layer != {"__main__"}]
