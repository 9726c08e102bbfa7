"""Hooks of mkdocs: what differs between the pages on a code host and the site that `make docs` builds from them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"].get("Source", "")


def read_navigation(index: str) -> list[dict[str, Any]]:
    """Return the sections of docs/index.md with their pages."""
    sections = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL)
    pages = re.compile(r"^\* \[(.+?)\]\(([\w/-]+\.md)\)", re.MULTILINE)
    return [{heading: [{title: page} for title, page in pages.findall(body)]} for heading, body in sections]


def replace_outer_links(markdown: str, directory: Path) -> str:
    """Lead links to files outside the site to the repository, or keep only their text while it has no public home."""

    def replace(found: re.Match[str]) -> str:
        image, text, target, anchor = found.groups(default="")
        path = (directory / target).resolve()
        if ":" in target or (path.is_file() and path.is_relative_to(DOCS)):
            return found[0]
        return f"{image}[{text}]({SOURCE}/blob/main/{path.relative_to(ROOT)}{anchor})" if SOURCE else text

    return LINK.sub(replace, markdown)


def on_config(config: Any) -> Any:
    config.nav = [{"Documentation": "index.md"}, *read_navigation((DOCS / "index.md").read_text())]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Take from a fence what the tests read: `console live` and `console node`."""
    markdown = re.sub(r"^```console \w+$", "```console", markdown, flags=re.MULTILINE)
    return replace_outer_links(markdown, (DOCS / page.file.src_uri).parent)
