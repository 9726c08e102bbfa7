"""What README.md and docs/commands.md show is what the program does."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import pytest

from pointsman.cli.main import main, render_usage

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
    assert named <= {line.split()[0] for line in render_usage().splitlines() if line.startswith("  ")}


def test_every_command_is_named() -> None:
    commands = [line.split()[0] for line in render_usage().splitlines() if line.startswith("  ")]
    table = README.partition("## Commands")[2].partition("```")[0]
    assert [name for name in commands if not re.search(rf"`(pointsman )?{name}\b", table)] == []


def test_what_is_shown_of_the_demo_is_part_of_the_recorded_run() -> None:
    picture = (ROOT / "docs/demo.svg").read_text()
    recorded = {
        html.unescape(re.sub("<[^>]*>", "", line)).rstrip()
        for line in re.findall(r"<text[^>]*>(.*?)</text>", picture, re.DOTALL)
    }
    _, _, rest = README.partition("([the whole run](docs/demo.svg)):\n\n```\n")
    shown = rest.partition("\n```")[0].splitlines()
    assert len(shown) > 10
    assert [line for line in shown if line and line not in recorded] == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", README, re.MULTILINE)) <= targets
