"""Links between Markdown files lead to files and headings that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.site_hooks import DOCS, LINK, read_navigation, replace_outer_links

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


def test_the_site_has_every_page_and_no_link_out_of_it() -> None:
    navigation = read_navigation((DOCS / "index.md").read_text())
    entries = [entry for section in navigation for pages in section.values() for entry in pages]
    pages = {DOCS / page for entry in entries for page in entry.values()}
    assert pages == set(DOCS.rglob("*.md")) - {DOCS / "index.md"}, "list them in docs/index.md"
    for page in sorted(pages):
        targets = LINK.findall(replace_outer_links(page.read_text(), page.parent))
        inside = (target for _, _, target, _ in targets if ":" not in target)
        assert [one for one in inside if not (page.parent / one).resolve().is_relative_to(DOCS)] == []
