"""The pinned dependencies are those pyproject.toml asks for; scripts/lock writes them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ASKED = {
    "run": PROJECT["project"]["dependencies"],
    "build": [*PROJECT["build-system"]["requires"], *PROJECT["dependency-groups"]["build"]],
    "dev": [text for text in PROJECT["dependency-groups"]["dev"] if isinstance(text, str)],
    "docs": PROJECT["dependency-groups"]["docs"],
}


def _locked(name: str) -> Iterator[tuple[Requirement, list[str]]]:
    """Every pin of a lock file and its hashes."""
    text = (ROOT / f"requirements/{name}.txt").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.lstrip().startswith("#"):
            pin, *hashes = re.split(r"\s--hash=", line)
            yield Requirement(pin), hashes


def _versions(name: str, python: str) -> dict[str, str]:
    """What the lock installs on Linux with that Python."""
    environment: dict[str, str] = {
        **{name: str(value) for name, value in default_environment().items()},
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
    }
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin, _ in _locked(name)
        if pin.marker is None or pin.marker.evaluate(environment)
    }


@pytest.mark.parametrize("name", ASKED)
def test_every_pin_is_exact_and_has_hashes(name: str) -> None:
    for pin, hashes in _locked(name):
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), pin
        assert hashes, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", digest) for digest in hashes), pin


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", ASKED)
def test_every_requirement_is_pinned_to_a_version_it_allows(name: str, python: str) -> None:
    versions = _versions(name, python)
    for text in ASKED[name]:
        wanted = Requirement(text)
        assert versions[canonicalize_name(wanted.name)] in wanted.specifier, text


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", ["run", "build"])
def test_tests_run_with_what_users_get(name: str, python: str) -> None:
    assert _versions(name, python).items() <= _versions("dev", python).items()


def test_nothing_is_pinned_that_nobody_asks_for() -> None:
    """A dependency that left pyproject.toml must leave the lock, too."""
    text = "".join((ROOT / f"requirements/{name}.txt").read_text() for name in ("dev", "docs"))
    direct = re.findall(
        r"^(\S+)==[^#]*?(?:# via|#)[^=]*?pointsman \(pyproject\.toml(?::\w+)?\)", text, re.MULTILINE
    )
    asked = {canonicalize_name(Requirement(text).name) for texts in ASKED.values() for text in texts}
    assert {canonicalize_name(name) for name in direct} == asked


def test_claimed_pythons_are_the_ones_the_workflow_runs() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    claimed = tuple(
        found[1] for text in classifiers if (found := re.fullmatch(r".*Python :: (3\.\d+)", text))
    )
    assert claimed == PYTHONS
    assert PYTHONS[0] in SpecifierSet(PROJECT["project"]["requires-python"])
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert tuple(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == PYTHONS
