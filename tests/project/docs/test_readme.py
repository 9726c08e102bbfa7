"""What README.md and docs/commands.md show is what the program does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pointsman.cli.main import main, usage

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()


def _console() -> list[tuple[str, str]]:
    """Commands and the output shown for each."""
    shown = README + (ROOT / "docs/commands.md").read_text()
    blocks = re.findall(r"^```console\n(.*?)^```$", shown, re.DOTALL | re.MULTILINE)
    parts = (block.removeprefix("$ ").partition("\n") for block in blocks)
    return [(command, shown) for command, _, shown in parts]


@pytest.mark.parametrize(("command", "shown"), _console())
def test_shown_output_is_real(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(command)
    assert program == "pointsman"
    main(arguments)
    assert capsys.readouterr().out == shown


def test_commands_of_the_table_exist() -> None:
    named = set(re.findall(r"^\| `pointsman (\w+)", README, re.MULTILINE))
    assert len(named) >= 7
    assert named <= {line.split()[0] for line in usage().splitlines() if line.startswith("  ")}


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", README, re.MULTILINE)) <= targets
