"""Every test, matrix line and recording named in docs/evidence/conformance.md and its neighbours exists, and no line of the
matrix is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.matrix import SETTINGS

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs/evidence/conformance.md").read_text()


def _named(pattern: str) -> set[str]:
    return set(re.findall(rf"`{pattern}`", DOCUMENT))


def _test_functions() -> Iterator[str]:
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield node.name


def _matrix_lines() -> set[str]:
    return {case.id.partition(":")[0] for setting in SETTINGS for case in setting.cases}


def test_named_tests_exist() -> None:
    named = _named(r"(test_\w+)")
    assert len(named) > 100
    assert named - set(_test_functions()) == set()


@pytest.mark.parametrize("name", ["evidence/reliability", "compatibility"])
def test_tests_named_in_neighbouring_documents_exist(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert len(named) > 1
    assert named - set(_test_functions()) == set()
    assert {file for file in files if not (ROOT / file).is_file()} == set()


def test_named_matrix_lines_exist() -> None:
    assert _named(r"matrix:([\w-]+)") - _matrix_lines() == set()


def test_every_matrix_line_is_listed() -> None:
    assert _matrix_lines() - _named(r"matrix:([\w-]+)") == set(), (
        "describe them in docs/evidence/conformance.md"
    )


def _recordings() -> set[str]:
    return {path.name for path in (ROOT / "tests" / "golden" / "data").iterdir() if path.is_dir()}


def test_named_recordings_exist() -> None:
    assert _named(r"golden:([\w-]+)") - _recordings() == set()


def test_the_recordings_are_counted_right() -> None:
    assert re.findall(r"(\d+) scenarios", DOCUMENT) == [str(len(_recordings()))]
