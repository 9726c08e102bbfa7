"""What is built and from when: the version, the commit and its time, which all artefacts bear."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from pointsman import __version__

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
SUMMARY = "kube-proxy for every node: drop-in, explainable, fast"


class Source(NamedTuple):
    """The state of the repository that an artefact is made from."""

    version: str
    revision: str
    """The commit; with `-dirty` where files differ from it."""
    epoch: int
    """Its time: nothing in an artefact is younger, so that the same source gives the same bytes."""

    @property
    def environment(self) -> dict[str, str]:
        """For the tools that build: the time as they expect it, and sets in one order."""
        return {**os.environ, "SOURCE_DATE_EPOCH": str(self.epoch), "PYTHONHASHSEED": "0"}


def source(root: Path = ROOT) -> Source:
    """SOURCE_DATE_EPOCH wins over the commit's time, as everywhere."""
    revision = _git(root, "rev-parse", "HEAD")
    if _git(root, "status", "--porcelain", "--untracked-files=no"):
        revision += "-dirty"
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return Source(__version__, revision, int(given or _git(root, "log", "-1", "--format=%ct")))


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ("git", "-C", str(root), *arguments), check=True, capture_output=True, text=True
    ).stdout.strip()
