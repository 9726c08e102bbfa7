"""Every program, command and option as plain values, read from the parsers: what completions and man pages are made from."""

from __future__ import annotations

import argparse
import enum
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


class Takes(enum.Enum):
    """What can stand in an argument, as far as completion can help."""

    NOTHING = "nothing"
    """It is a switch."""
    WORD = "word"
    CHOICE = "choice"
    FILE = "file"
    SERVICE = "service"
    NAMESPACE = "namespace"
    CLIENT = "client"
    """A kind of client, or a pod."""


_LIVE = {
    "target": Takes.SERVICE,
    "services": Takes.SERVICE,
    "namespace": Takes.NAMESPACE,
    "client": Takes.CLIENT,
}
"""Arguments that the running proxy has values for, by what commands call them."""


class Option(msgspec.Struct, frozen=True):
    """A flag, or an argument that has no dashes."""

    names: tuple[str, ...]
    """With their dashes; empty for an argument by position."""
    help: str
    takes: Takes
    value: str = ""
    """How the value is called."""
    choices: tuple[str, ...] = ()
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


def list_run_flags() -> tuple[Option, ...]:
    """The flags of `run`, as options."""
    return tuple(map(_from_flag, FLAGS))


def list_commands() -> Iterator[Command]:
    """Every sub-command of `pointsman`, in the order of its usage."""
    for name, summary in SUBCOMMANDS.items():
        if name == "run":
            yield Command(name, summary, (_ABOUT_RUN,), list_run_flags())
        else:
            yield from_parser(name, summary, importlib.import_module(f"pointsman.cli.{name}").build_parser())


def describe_kube_proxy() -> Command:
    summary = "kube-proxy's flags and behaviour, by Pointsman"
    return Command("kube-proxy", summary, (_ABOUT_KUBE_PROXY, _ABOUT_RUN), list_run_flags())


def describe_kubectl_plugin() -> Command:
    from pointsman.cli.kubectl_plugin import build_parser

    return from_parser("kubectl-pointsman", "ask the proxies of a cluster through kubectl", build_parser())


def from_parser(name: str, summary: str, parser: argparse.ArgumentParser) -> Command:
    """What an argument parser takes."""
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
    takes = Takes.WORD
    if action.option_strings and action.nargs == 0:
        takes = Takes.NOTHING
    elif action.choices is not None:
        takes = Takes.CHOICE
    elif action.type is Path:
        takes = Takes.FILE
    else:
        takes = _LIVE.get(action.dest, takes)
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper().replace("_", "-")
    return Option(
        names=tuple(action.option_strings),
        help=(action.help or "").replace("%%", "%"),
        takes=takes,
        value="" if takes is Takes.NOTHING else value,
        choices=tuple(map(str, action.choices or ())),
    )


def _from_flag(flag: Flag) -> Option:
    takes = Takes.WORD
    if flag.kind in (Kind.BOOL, Kind.VERSION):
        takes = Takes.NOTHING
    elif flag.choices:
        takes = Takes.CHOICE
    elif flag.is_path:
        takes = Takes.FILE
    short = (f"-{flag.shorthand}",) if flag.shorthand else ()
    alias = (f"--{flag.alias}",) if flag.alias else ()
    return Option(
        names=(*short, f"--{flag.name}", *alias),
        help=describe_flag(flag),
        takes=takes,
        value="" if takes is Takes.NOTHING else flag.kind.value,
        choices=flag.choices,
        group=flag.group,
    )
