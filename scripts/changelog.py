#!/usr/bin/env python3
"""Shows the changes since the last release, or folds them into CHANGELOG.md as a release.

`scripts/changelog.py` prints the section; `scripts/changelog.py VERSION` writes it and deletes the fragments.
changelog.d/README.md says how a fragment looks.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("added", "changed", "fixed", "removed")
_NAME = re.compile(rf"[a-z0-9][a-z0-9.-]*\.({'|'.join(KINDS)})\.md")
_RELEASE = re.compile(r"^## ", re.MULTILINE)


class BadFragment(ValueError):
    """A file in changelog.d that cannot go into a changelog."""


class Fragment(NamedTuple):
    """One change that users notice."""

    kind: str
    text: str


def read_fragments(directory: Path) -> dict[Path, Fragment]:
    return {path: _fragment(path) for path in sorted(directory.iterdir()) if path.name != "README.md"}


def _fragment(path: Path) -> Fragment:
    found = _NAME.fullmatch(path.name)
    if not found:
        raise BadFragment(f"{path.name}: name it <slug>.<{'|'.join(KINDS)}>.md, in lower case")
    text = " ".join(path.read_text().split())
    if not text:
        raise BadFragment(f"{path.name}: is empty; say in one sentence what changed")
    if text[0] in "#*-":
        raise BadFragment(f"{path.name}: holds a heading or a bullet; one plain sentence is enough")
    return Fragment(found[1], text)


def section(version: str, date: str, fragments: Iterable[Fragment]) -> str:
    """One release of the changelog: a heading, then the changes by kind."""
    parts = [f"## {version} ({date})"]
    every = sorted(fragments)
    for kind in KINDS:
        lines = [f"* {fragment.text}" for fragment in every if fragment.kind == kind]
        if lines:
            parts.append(f"### {kind.capitalize()}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def with_release(changelog: str, release: str) -> str:
    """The changelog with one more release, before the ones it has."""
    heading = release.split()[1]
    if re.search(rf"^## {re.escape(heading)}\b", changelog, re.MULTILINE):
        raise BadFragment(f"CHANGELOG.md already has {heading}")
    first = _RELEASE.search(changelog)
    at = first.start() if first else len(changelog)
    return changelog[:at] + release + "\n" + changelog[at:]


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("version", nargs="?", help="the release to write; without it, only show the changes")
    today = dt.datetime.now(dt.UTC).date().isoformat()
    parser.add_argument("--date", default=today, help="date of the release (today)")
    chosen = parser.parse_args(arguments)
    try:
        fragments = read_fragments(root / "changelog.d")
        if chosen.version is None:
            print(section("Next release", "unreleased", fragments.values()), end="")
            return 0
        if not fragments:
            raise BadFragment("changelog.d holds no change; there is nothing to release")
        changelog = root / "CHANGELOG.md"
        release = section(chosen.version, chosen.date, fragments.values())
        changelog.write_text(with_release(changelog.read_text(), release))
    except BadFragment as error:
        print(f"changelog: {error}", file=sys.stderr)
        return 1
    for path in fragments:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
