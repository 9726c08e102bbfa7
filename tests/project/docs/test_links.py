"""Links between Markdown files lead to files and headings that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SKIPPED = {"node_modules", "data"}


def _documents() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    return sorted(path for path in found if not SKIPPED & set(path.parts))


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def _anchors(document: Path) -> set[str]:
    """As GitHub makes them from headings."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken(document: Path) -> Iterator[str]:
    for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", _without_code(document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and anchor not in _anchors(target):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("document", _documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_internal_links_lead_somewhere(document: Path) -> None:
    assert list(_broken(document)) == []


def test_every_page_is_reachable_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = re.findall(r"\]\(([\w-]+\.md)\)", index.read_text())
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages - set(linked) == set(), "link them in docs/index.md"
