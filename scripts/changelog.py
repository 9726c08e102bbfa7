#!/usr/bin/env python3
"""Shows the changes since the last release, or folds them into CHANGELOG.md as a release.

`scripts/changelog.py` prints the section; `scripts/changelog.py VERSION` writes it and deletes the fragments;
`scripts/changelog.py --notes VERSION` prints what CHANGELOG.md says of a release. A candidate has the notes of its release.
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
    return {path: _parse_fragment(path) for path in sorted(directory.iterdir()) if path.name != "README.md"}


def _parse_fragment(path: Path) -> Fragment:
    found = _NAME.fullmatch(path.name)
    if not found:
        raise BadFragment(f"{path.name}: name it <slug>.<{'|'.join(KINDS)}>.md, in lower case")
    text = " ".join(path.read_text().split())
    if not text:
        raise BadFragment(f"{path.name}: is empty; say in one sentence what changed")
    if text[0] in "#*-":
        raise BadFragment(f"{path.name}: holds a heading or a bullet; one plain sentence is enough")
    return Fragment(found[1], text)


def render_section(version: str, date: str, fragments: Iterable[Fragment]) -> str:
    """One release of the changelog: a heading, then the changes by kind."""
    parts = [f"## {version} ({date})"]
    every = sorted(fragments)
    for kind in KINDS:
        lines = [f"* {fragment.text}" for fragment in every if fragment.kind == kind]
        if lines:
            parts.append(f"### {kind.capitalize()}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def add_release(changelog: str, release: str) -> str:
    """The changelog with one more release before the ones it has, or with the date and changes of one that is marked `(unreleased)`."""
    heading = release.split()[1]
    first_line, _, changes = release.partition("\n")
    draft = re.search(
        rf"^## {re.escape(heading)} \(unreleased\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if draft:
        written = f"{first_line}\n{draft[1].rstrip()}\n{changes.rstrip()}".rstrip()
        rest = changelog[draft.end() :]
        return changelog[: draft.start()] + written + "\n" + (f"\n{rest}" if rest else "")
    if re.search(rf"^## {re.escape(heading)}\b", changelog, re.MULTILINE):
        raise BadFragment(f"CHANGELOG.md already has {heading}")
    first = _RELEASE.search(changelog)
    at = first.start() if first else len(changelog)
    return changelog[:at] + release + "\n" + changelog[at:]


def read_notes(changelog: str, version: str) -> str:
    """Return the text of one release, without its heading."""
    final = version.partition("rc")[0]
    for part in _RELEASE.split(changelog)[1:]:
        heading, _, text = part.partition("\n")
        if heading.split()[0] in (version, final):
            if version == final and "(unreleased)" in heading:
                raise BadFragment(
                    f"CHANGELOG.md calls {version} unreleased; write it with scripts/changelog.py {version}"
                )
            return text.strip() + "\n"
    raise BadFragment(
        f"CHANGELOG.md says nothing about {version}; write it with scripts/changelog.py {final}"
    )


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("version", nargs="?", help="the release to write; without it, only show the changes")
    parser.add_argument("--notes", action="store_true", help="print the notes of a release instead")
    today = dt.datetime.now(dt.UTC).date().isoformat()
    parser.add_argument("--date", default=today, help="date of the release (today)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.notes:
            print(read_notes((root / "CHANGELOG.md").read_text(), chosen.version), end="")
            return 0
        fragments = read_fragments(root / "changelog.d")
        if chosen.version is None:
            print(render_section("Next release", "unreleased", fragments.values()), end="")
            return 0
        changelog = root / "CHANGELOG.md"
        if not fragments and f"## {chosen.version} (unreleased)" not in changelog.read_text():
            raise BadFragment("changelog.d holds no change; there is nothing to release")
        release = render_section(chosen.version, chosen.date, fragments.values())
        changelog.write_text(add_release(changelog.read_text(), release))
    except BadFragment as error:
        print(f"changelog: {error}", file=sys.stderr)
        return 1
    for path in fragments:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
