"""What is built and from when: the version, the commit and its time, which all artefacts bear; where artefacts go."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pointsman import __version__

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUMMARY: str = PROJECT["description"].rstrip(".")
URLS: dict[str, str] = PROJECT.get("urls", {})
VENDOR: str = PROJECT["authors"][0]["name"]


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


def read_source(root: Path = ROOT) -> Source:
    """SOURCE_DATE_EPOCH wins over the commit's time, as everywhere."""
    revision = _run_git(root, "rev-parse", "HEAD")
    if _run_git(root, "status", "--porcelain", "--untracked-files=no"):
        revision += "-dirty"
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return Source(__version__, revision, int(given or _run_git(root, "log", "-1", "--format=%ct")))


def _run_git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ("git", "-C", str(root), *arguments), check=True, capture_output=True, text=True
    ).stdout.strip()


@contextlib.contextmanager
def staging(*replaced: str, dist: Path = DIST) -> Iterator[Path]:
    """A directory whose files are moved to dist/ when the block ends without an error.

    Files in dist/ that match `replaced` are removed first, and so are checksums: nothing there is unchecked or stale.
    """
    dist.mkdir(exist_ok=True)
    for pattern in (*replaced, "SHA256SUMS*"):
        for old in dist.glob(pattern):
            old.unlink()
    with tempfile.TemporaryDirectory(dir=dist.parent, prefix=".dist-") as directory:
        yield Path(directory)
        for path in sorted(Path(directory).iterdir()):
            path.rename(dist / path.name)
            print(f"{(dist / path.name).stat().st_size:>10}  dist/{path.name}")
