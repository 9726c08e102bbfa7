"""The unit and the configuration beside it: what one host without a cluster runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pointsman.config.load import load
from pointsman.config.validate import find_problems

ROOT = Path(__file__).parents[3]
UNIT = (ROOT / "deploy/systemd/pointsman.service").read_text()


def test_the_configuration_to_start_with_is_valid() -> None:
    loaded = load((ROOT / "deploy/systemd/config.yaml").read_bytes())
    assert loaded.problems == ()
    assert find_problems(loaded.config) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_gives_away_little() -> None:
    """systemd's own score, from 0 (nothing) to 10 (everything)."""
    unit = str(ROOT / "deploy/systemd/pointsman.service")
    command = ("systemd-analyze", "security", "--offline=yes", "--no-pager", unit)
    report = subprocess.run(command, capture_output=True, text=True).stdout
    (score,) = re.findall(r"Overall exposure level for pointsman.service: ([0-9.]+)", report)
    assert float(score) <= 4, report


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "pointsman.service"
    copy.write_text(UNIT.replace("ExecStart=/opt/pointsman/bin/pointsman", "ExecStart=/bin/true"))
    command = ("systemd-analyze", "verify", "--man=no", str(copy))
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
