"""Every command shown in the documentation is one that the program's own parser takes."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
from bench.__main__ import BENCHMARKS
from tests.project.docs.shown import DOCUMENTS, ROOT, code_in, shown

from pointsman.cli.arguments import Parser, split_run_flags
from pointsman.cli.main import render_usage
from pointsman.config.command_line import parse_run

CONFIG = ROOT / "deploy/kustomize/config.yaml"
SUBCOMMANDS = {line.split()[0] for line in render_usage().splitlines() if line.startswith("  ")}


def _parse_run(arguments: list[str], program: str) -> None:
    options = parse_run(_with_real_files(arguments), program=program)
    assert options.warnings == () or "--feature-gates" in " ".join(arguments)


def _with_real_files(arguments: list[str]) -> list[str]:
    """The reader's configuration file is replaced by one that is there."""
    named = re.sub(r"(?m)^--config[=\n].*$", f"--config={CONFIG}", "\n".join(arguments))
    return named.split("\n") if named else []


@pytest.mark.parametrize(("document", "command"), shown("pointsman"))
def test_a_shown_command_is_parsed(document: str, command: str) -> None:
    name, *arguments = shlex.split(command) or [""]
    if name in ("--version", "--help") or name.isupper():
        return
    assert name in SUBCOMMANDS
    if name == "version" or not arguments:
        return
    if name == "run":
        _parse_run(arguments, "pointsman")
        return
    parser = importlib.import_module(f"pointsman.cli.{name}").build_parser()
    assert isinstance(parser, argparse.ArgumentParser)
    own, flags = arguments, list[str]()
    if isinstance(parser, Parser) and parser.takes_run_flags:
        own, flags = split_run_flags(parser, arguments)
    parser.parse_args(own)
    _parse_run(flags, "pointsman")


@pytest.mark.parametrize(("document", "command"), [one for one in shown("kube-proxy") if one[1]])
def test_a_shown_kube_proxy_command_is_parsed(document: str, command: str) -> None:
    _parse_run(shlex.split(command), "kube-proxy")


@pytest.mark.parametrize(("document", "command"), shown("python"))
def test_a_shown_module_exists(document: str, command: str) -> None:
    option, module, *flags = shlex.split(command)
    assert option == "-m"
    if module == "bench" and flags[0] in BENCHMARKS:
        module = f"bench.{BENCHMARKS[flags[0]].module}"
    source = Path(str(importlib.import_module(module).__file__))
    if source.name == "__init__.py":
        source = source.with_name("__main__.py")
    for flag in flags:
        if flag.startswith("--"):
            assert f'"{flag.partition("=")[0]}"' in source.read_text()


@pytest.mark.parametrize(("document", "command"), shown("make"))
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
            for code in code_in(path)
            for found in re.findall(r"\bscripts/[\w.]+", code)
        }
    ),
)
def test_a_shown_script_exists(document: str, script: str) -> None:
    assert (ROOT / script).is_file()
