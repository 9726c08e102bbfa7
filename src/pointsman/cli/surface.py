"""Every program, command and option as plain values, read from the parsers: for completion and man pages."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pointsman.cli.arguments import Parser
from pointsman.cli.main import SUBCOMMANDS
from pointsman.config.flags import FLAGS, describe_flag
from pointsman.config.goflags import Flag, Kind

_ABOUT_RUN = """Serve this node's Services until stopped: watch the API server, or files, and keep the kernel's rules as they
should be. Packets never pass through this process, and the rules stay when it ends."""
_ABOUT_KUBE_PROXY = """Pointsman under the name, with the flags and with the defaults of kube-proxy."""


class Option(msgspec.Struct, frozen=True):
    """A flag, or an argument that has no dashes."""

    names: tuple[str, ...]
    """With their dashes; empty for an argument by position."""
    help: str
    destination: str
    """The name of the argument in the program."""
    value: str = ""
    """How the value is called; empty for a switch."""
    choices: tuple[str, ...] = ()
    is_path: bool = False
    group: str = ""
    """Heading under which the flags of `run` are shown."""


class Command(msgspec.Struct, frozen=True):
    """A program, or a sub-command of one."""

    name: str
    summary: str
    about: tuple[str, ...]
    """Paragraphs."""
    options: tuple[Option, ...]
    arguments: tuple[Option, ...] = ()
    takes_run_flags: bool = False
    """Besides `options`."""

    @property
    def all_options(self) -> tuple[Option, ...]:
        """Those of `run` as well where it takes them, except those that it has itself."""
        if not self.takes_run_flags:
            return self.options
        own = {name for option in self.options for name in option.names}
        return (*self.options, *(flag for flag in list_run_flags() if not own.intersection(flag.names)))


def list_run_flags() -> tuple[Option, ...]:
    """Return the flags of `run`."""
    return tuple(map(_from_flag, FLAGS))


def list_commands() -> Iterator[Command]:
    """Every sub-command of `pointsman`, in the order of its usage."""
    return map(describe_command, SUBCOMMANDS)


def describe_command(name: str) -> Command:
    if name == "run":
        return Command(name, SUBCOMMANDS[name], (_ABOUT_RUN,), list_run_flags())
    module = importlib.import_module(f"pointsman.cli.{name}")
    return from_parser(name, SUBCOMMANDS[name], module.build_parser())


def describe_kube_proxy() -> Command:
    summary = "kube-proxy's flags and behaviour, by Pointsman"
    return Command("kube-proxy", summary, (_ABOUT_KUBE_PROXY, _ABOUT_RUN), list_run_flags())


def describe_kubectl_plugin() -> Command:
    from pointsman.cli.kubectl_plugin import build_parser

    return from_parser("kubectl-pointsman", "ask the proxies of a cluster through kubectl", build_parser())


def from_parser(name: str, summary: str, parser: argparse.ArgumentParser) -> Command:
    """Return what an argument parser takes."""
    found = [_from_action(action) for action in parser._actions]
    return Command(
        name,
        summary,
        tuple(" ".join(paragraph.split()) for paragraph in (parser.description or "").split("\n\n")),
        tuple(option for option in found if option.names),
        tuple(option for option in found if not option.names),
        takes_run_flags=isinstance(parser, Parser) and parser.takes_run_flags,
    )


def _from_action(action: argparse.Action) -> Option:
    is_switch = bool(action.option_strings) and action.nargs == 0
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper().replace("_", "-")
    return Option(
        names=tuple(action.option_strings),
        help=(action.help or "").replace("%%", "%"),
        destination=action.dest,
        value="" if is_switch else value,
        choices=tuple(map(str, action.choices or ())),
        is_path=action.type is Path,
    )


def _from_flag(flag: Flag) -> Option:
    short = (f"-{flag.shorthand}",) if flag.shorthand else ()
    alias = (f"--{flag.alias}",) if flag.alias else ()
    return Option(
        names=(*short, f"--{flag.name}", *alias),
        help=describe_flag(flag),
        destination=flag.name,
        value="" if flag.kind in (Kind.BOOL, Kind.VERSION) else flag.kind.value,
        choices=flag.choices,
        is_path=flag.is_path,
        group=flag.group,
    )
