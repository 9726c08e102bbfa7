"""The repository is laid out as CONTRIBUTING.md says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_unit_tests_live_where_their_subject_lives() -> None:
    tested = {
        path.parent.relative_to(ROOT / "tests/unit") for path in (ROOT / "tests/unit").rglob("test_*.py")
    }
    packages = {
        path.parent.relative_to(ROOT / "src/pointsman") for path in (ROOT / "src/pointsman").rglob("*.py")
    }
    assert tested - packages == set()


def test_no_two_test_files_have_the_same_name() -> None:
    """pytest imports them by name."""
    counted = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in counted.items() if count > 1] == []


def test_every_directory_of_tests_is_explained() -> None:
    explained = set(re.findall(r"^\| `tests/(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    found = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/*.py")}
    assert found == explained


def test_every_hook_calls_a_script_of_ours() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]:
        script = ROOT / hook["entry"]
        assert script.is_file()
        assert script.stat().st_mode & 0o111


def test_the_workflow_runs_what_a_contributor_runs() -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]["steps"]
    assert steps[-1]["run"].endswith(" make test")
