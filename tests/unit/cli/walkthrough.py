"""Documents that show commands with their output, and a shell that runs them as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = DOCS / "examples" / "shop"
BLOCK = re.compile(r"^```console(?: (?P<where>\w+))?\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def sessions(document: Path, where: str = "") -> Iterator[tuple[str, str]]:
    """Every command that the document shows in one kind of place, with the output shown for it."""
    for block in BLOCK.finditer(document.read_text()):
        if (block["where"] or "") != where:
            continue
        for entry in re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]:
            command, _, shown = entry.partition("\n")
            yield command, shown


def settled(text: str) -> str:
    """Without what differs from run to run of a live proxy: numbers, and the widths of columns that follow them."""
    return re.sub(r" +", " ", NUMBER.sub("N", text)).replace("N µs", "N ms")


class Shell:
    """One bash for all commands, so that variables and `$?` work as for a reader."""

    def __init__(self, bin_directory: Path, arguments: str = "") -> None:
        launcher = bin_directory / "pointsman"
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pointsman "$@" {arguments}\n')
        launcher.chmod(0o755)
        self._path = f"{bin_directory}:{os.environ['PATH']}"

    def run(self, commands: list[str]) -> list[str]:
        """The output of each command."""
        end = "--- end of output ---"
        script = "\n".join(f"{command}\nstatus=$?; echo '{end}'; (exit $status)" for command in commands)
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{script}"],
            cwd=DOCS,
            env={**os.environ, "PATH": self._path, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout.split(f"{end}\n")[:-1]


def compare(shell: Shell, shown: list[tuple[str, str]], form: Callable[[str], str] = str.rstrip) -> None:
    outputs = shell.run([command for command, _ in shown])
    assert len(outputs) == len(shown)
    for (command, expected), output in zip(shown, outputs, strict=True):
        if form(output) != form(expected):
            pytest.fail(f"$ {command}\n--- shown in the document\n{expected}\n--- printed\n{output}")
