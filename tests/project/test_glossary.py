"""The words that docs/glossary.md replaces are not used."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = "docs/glossary.md"
EXEMPT = {GLOSSARY, "src/pointsman/cli/completion.py"}
"""Shells call the parts of a command line words."""
READ = (
    "src",
    "tests/fake",
    "tests/harness",
    "docs",
    "bench",
    "scripts",
    "deploy",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
NAMES_OF_TESTS = re.compile(r"`(?:test_|matrix:|golden:)[^`]*`")
"""They may be sentences."""
SUFFIXES = {"", ".py", ".md", ".yaml", ".yml", ".txt", ".html", ".js", ".css", ".tpl", ".service"}


class Use(NamedTuple):
    """A replaced word in a file."""

    place: str
    word: str
    term: str

    def __str__(self) -> str:
        return f"{self.place}: {self.word!r}; use: {self.term}"


@cache
def replaced_words() -> dict[str, str]:
    """Replaced word -> term to use, from the table of the glossary."""
    _, table = (ROOT / GLOSSARY).read_text().split("\n## Replaced words\n")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)[1:]
    return {word: term for words, term in rows for word in words.split(", ")}


@cache
def pattern() -> re.Pattern[str]:
    """Return what finds them; what the words share is written once, for speed."""
    words = [word for word in replaced_words() if not word.startswith("`")]
    names = [word.strip("`") for word in replaced_words() if word.startswith("`")]
    parts = [name for name in names if name.startswith("_")]
    prefixes = [name for name in names if not name.startswith("_")]
    return re.compile(
        rf"(?<![A-Za-z])(?:(?i:{'|'.join(words)})(?![A-Za-z])|(?:{'|'.join(prefixes)}))"
        rf"|(?:{'|'.join(word.capitalize() for word in words)})(?![a-z])"
        rf"|(?:{'|'.join(parts)})"
    )


def term_for(found: str) -> str:
    words = replaced_words()
    return words.get(found.lower()) or words[f"`{found}`"]


def uses() -> list[Use]:
    listed = subprocess.run(("git", "ls-files", *READ), cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[Use] = []
    for name in listed.stdout.splitlines():
        path = Path(name)
        if path.suffix not in SUFFIXES or name in EXEMPT or not (ROOT / path).is_file():
            continue
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            found += [
                Use(f"{name}:{number}", match[0], term_for(match[0]))
                for match in pattern().finditer(NAMES_OF_TESTS.sub("", line))
            ]
    return found


def test_no_replaced_word_is_used() -> None:
    assert not uses(), "\n".join(map(str, uses()))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("if nobody_asked(): return Nobody", ["nobody", "Nobody"]),
        ("class TroubleBoard: pass", ["Trouble"]),
        ("## Troubleshooting, MOSTLY", []),
        ("_MOST_NAMES = 3; kept_AT_MOST = 4", ["MOST_", "_AT_MOST"]),
    ],
)
def test_words_are_found_inside_names(line: str, words: list[str]) -> None:
    assert [match[0] for match in pattern().finditer(NAMES_OF_TESTS.sub("", line))] == words
