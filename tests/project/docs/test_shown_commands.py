"""Commands shown anywhere in the documentation exist, with the flags they are shown with."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pointsman.cli.main import main
from pointsman.config.flag_table import BY_NAME

ROOT = Path(__file__).parents[3]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
COMMAND = re.compile(r"pointsman (run|render|explain|status|verify|cleanup|demo|check)\b([^`|\n]*)")


def _shown() -> Iterator[tuple[str, str, str]]:
    """Document, sub-command and flag, for every flag in a code block or in code inside a line."""
    for path in DOCUMENTS:
        text = path.read_text().replace("\\\n", " ")
        code = re.findall(r"^```.*?^```$|`[^`\n]+`", text, re.DOTALL | re.MULTILINE)
        for command, arguments in COMMAND.findall("\n".join(code)):
            for flag in re.findall(r"(?<!\S)--([a-z][\w-]*)", arguments):
                yield path.name, command, flag


@cache
def _help(command: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return printed.getvalue()


@pytest.mark.parametrize(("document", "command", "flag"), sorted(set(_shown())))
def test_shown_flags_exist(document: str, command: str, flag: str) -> None:
    takes_run_flags = command in ("run", "render", "explain", "check")
    assert f"--{flag}" in _help(command) or (takes_run_flags and flag in BY_NAME)
