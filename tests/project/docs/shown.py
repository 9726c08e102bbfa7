"""The commands that the documentation shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "changelog.d").glob("*.md")])
BLOCKS = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
END_OF_COMMAND = {"|", "||", "&&", "&", ";", ">", ">>", "2>", "<"}


def code_in(path: Path) -> Iterator[str]:
    """Lines of code blocks and code inside lines, with `\\` at the end of a line followed."""
    text = path.read_text().replace("\\\n", " ")
    for language, block in BLOCKS.findall(text):
        mixed = language.startswith("console")
        yield from (line for line in block.splitlines() if not mixed or line.startswith("$ "))
    yield from INLINE.findall(BLOCKS.sub("", text))


def _commands(path: Path, program: str) -> Iterator[list[str]]:
    """The arguments of every call of a program that the document shows."""
    variables = dict(re.findall(r'^\$ export (\w+)="(.*)"$', path.read_text(), re.MULTILINE))
    for line in code_in(path):
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        try:
            words = shlex.split(line.removeprefix("$ "), comments=True)
        except ValueError:
            continue
        while words and (words[0] == "sudo" or re.fullmatch(r"[A-Z_]+=.*", words[0])):
            del words[0]
        if words[:1] == [program]:
            yield [word for word in words[1 : _end(words)] if word not in ("...", "…")]


def _end(words: list[str]) -> int:
    return next((at for at, word in enumerate(words) if word in END_OF_COMMAND), len(words))


def shown(program: str) -> list[tuple[str, str]]:
    found = {(path.name, shlex.join(words)) for path in DOCUMENTS for words in _commands(path, program)}
    return sorted(found)
