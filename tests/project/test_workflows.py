"""The workflows of .github: only pinned actions, no more rights than needed, nothing that GitHub would not run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ZIZMOR = Path(sys.executable).with_name("zizmor")


@pytest.mark.skipif(not ZIZMOR.exists(), reason="PyPI has zizmor for some platforms only")
def test_zizmor_finds_nothing() -> None:
    command = (str(ZIZMOR), "--offline", "--no-progress", "--no-config", *map(str, WORKFLOWS))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    for action in re.findall(r"uses: (.*)", path.read_text()):
        assert action.startswith("./.github/") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", action), (
            action
        )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_scripts_of_steps_are_valid_and_name_files_that_exist(path: Path) -> None:
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        for step in job.get("steps", ()):
            if "run" in step:
                script = re.sub(r"\$\{\{.*?\}\}", "value", step["run"])
                subprocess.run(("bash", "-n", "-c", script), check=True)
                for name in re.findall(r"(?<![\w./])scripts/[\w./]+", script):
                    assert (ROOT / name).is_file(), name
