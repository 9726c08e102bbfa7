"""Every command shown in the documentation is one that the program's own parser takes."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointsman.cli.arguments import split_run_flags
from pointsman.cli.main import usage
from pointsman.config.command_line import parse_run

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "changelog.d").glob("*.md")])
CONFIG = ROOT / "deploy/kustomize/config.yaml"
SUBCOMMANDS = {line.split()[0] for line in usage().splitlines() if line.startswith("  ")}
BLOCKS = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
END_OF_COMMAND = {"|", "||", "&&", "&", ";", ">", ">>", "2>", "<"}


def _code(path: Path) -> Iterator[str]:
    """Lines of code blocks and code inside lines, with `\\` at the end of a line followed."""
    text = path.read_text().replace("\\\n", " ")
    for language, block in BLOCKS.findall(text):
        mixed = language.startswith("console")
        yield from (line for line in block.splitlines() if not mixed or line.startswith("$ "))
    yield from INLINE.findall(BLOCKS.sub("", text))


def _commands(path: Path, program: str) -> Iterator[list[str]]:
    """The arguments of every call of a program that the document shows."""
    variables = dict(re.findall(r'^\$ export (\w+)="(.*)"$', path.read_text(), re.MULTILINE))
    for line in _code(path):
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


def _shown(program: str) -> list[tuple[str, str]]:
    found = {(path.name, shlex.join(words)) for path in DOCUMENTS for words in _commands(path, program)}
    return sorted(found)


def _parse_run(arguments: list[str], program: str) -> None:
    options = parse_run(_with_real_files(arguments), program=program)
    assert options.warnings == () or "--feature-gates" in " ".join(arguments)


def _with_real_files(arguments: list[str]) -> list[str]:
    """The reader's configuration file is replaced by one that is there."""
    named = re.sub(r"(?m)^--config[=\n].*$", f"--config={CONFIG}", "\n".join(arguments))
    return named.split("\n") if named else []


@pytest.mark.parametrize(("document", "command"), _shown("pointsman"))
def test_a_shown_command_is_parsed(document: str, command: str) -> None:
    name, *arguments = shlex.split(command) or [""]
    if name in ("--version", "--help") or name.isupper():
        return
    assert name in SUBCOMMANDS
    if name == "version" or not arguments:
        return
    if name in ("run", "check"):
        _parse_run(arguments, "pointsman")
        return
    parser = importlib.import_module(f"pointsman.cli.{name}").command()
    assert isinstance(parser, argparse.ArgumentParser)
    own, flags = split_run_flags(arguments) if name in ("render", "explain") else (arguments, [])
    parser.parse_args(own)
    _parse_run(flags, "pointsman")


@pytest.mark.parametrize(("document", "command"), [shown for shown in _shown("kube-proxy") if shown[1]])
def test_a_shown_kube_proxy_command_is_parsed(document: str, command: str) -> None:
    _parse_run(shlex.split(command), "kube-proxy")


@pytest.mark.parametrize(("document", "command"), _shown("python"))
def test_a_shown_module_exists(document: str, command: str) -> None:
    option, module, *flags = shlex.split(command)
    assert option == "-m"
    source = Path(str(importlib.import_module(module).__file__))
    if source.name == "__init__.py":
        source = source.with_name("__main__.py")
    for flag in flags:
        if flag.startswith("--"):
            assert f'"{flag.partition("=")[0]}"' in source.read_text()


@pytest.mark.parametrize(("document", "command"), _shown("make"))
def test_a_shown_make_target_exists(document: str, command: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    target, *variables = shlex.split(command)
    assert target in targets
    assert all(re.match(r"(VENV|PYTHON)=", variable) for variable in variables)


@pytest.mark.parametrize(
    ("document", "script"),
    sorted(
        {
            (path.name, found)
            for path in DOCUMENTS
            for code in _code(path)
            for found in re.findall(r"\bscripts/[\w.]+", code)
        }
    ),
)
def test_a_shown_script_exists(document: str, script: str) -> None:
    assert (ROOT / script).is_file()
