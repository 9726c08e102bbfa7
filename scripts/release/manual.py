"""Man pages made from the parsers: `python -m scripts.release.manual DIR` writes one per program and command.

No date and no path of the machine is in them, so the same source always gives the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from pointsman import __version__
from pointsman.cli.surface import Command, Option, describe_kube_proxy, describe_kubectl_plugin, list_commands

SECTION = 8
_ABOUT = """Pointsman turns Services and EndpointSlices, from an API server or from files, into nftables, iptables or ipvs rules
of this node, as kube-proxy does, and explains where any packet goes. Packets never pass through it."""


def build_pages() -> dict[str, str]:
    """Every page by its file name."""
    known = list(list_commands())
    found = {f"pointsman.{SECTION}": _build_overview(known)}
    for each in known:
        found[f"pointsman-{each.name}.{SECTION}"] = _build_page(
            each, f"pointsman-{each.name}", f"pointsman {each.name}"
        )
    alias, plugin = describe_kube_proxy(), describe_kubectl_plugin()
    found[f"kube-proxy.{SECTION}"] = _build_page(alias, alias.name, alias.name)
    found[f"{plugin.name}.{SECTION}"] = _build_page(plugin, plugin.name, "kubectl pointsman")
    return found


def _build_overview(known: Sequence[Command]) -> str:
    lines = _build_heading("pointsman", "a Service proxy that explains its rules")
    lines += [".SH SYNOPSIS", _format_bold("pointsman"), _format_italic("COMMAND"), "[flags]"]
    lines += [".SH DESCRIPTION", _escape_text(_ABOUT), ".SH COMMANDS"]
    for each in known:
        lines += [".TP", f"{_format_bold('pointsman ' + each.name)}", _escape_text(each.summary) + "; see"]
        lines += [f".BR pointsman\\-{_escape_text(each.name)} ({SECTION})"]
    return _join_lines(lines)


def _build_page(each: Command, title: str, called: str) -> str:
    lines = _build_heading(title, each.summary)
    lines += [".SH SYNOPSIS", _format_bold(called), "[flags]", *map(_format_argument, each.arguments)]
    lines += [".SH DESCRIPTION"]
    for number, paragraph in enumerate(each.about):
        lines += [*([".PP"] if number else []), _escape_text(paragraph)]
    if each.arguments:
        lines += [".SH ARGUMENTS"]
        for argument in each.arguments:
            lines += [".TP", _format_argument(argument), *_describe_option(argument)]
    for group, options in groupby(each.options, key=lambda option: option.group):
        lines += [f".SH {_escape_text(group.upper()) + ' ' if group else ''}OPTIONS", *_list_options(options)]
    if each.takes_run_flags:
        lines += [".PP", "The flags of", f".BR pointsman\\-run ({SECTION})", "are taken as well."]
    lines += [".SH SEE ALSO", f".BR pointsman ({SECTION})"]
    return _join_lines(lines)


def _list_options(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        value = f" {_format_italic(option.value)}" if option.value else ""
        yield ".TP"
        yield f"{', '.join(map(_format_bold, option.names))}{value}"
        yield from _describe_option(option)


def _describe_option(option: Option) -> Iterator[str]:
    first, *more = option.help.splitlines() or [""]
    if option.choices and not all(choice in first for choice in option.choices):
        first = (
            f"{first.rstrip('.')}. One of: {', '.join(option.choices)}."
            if first
            else ", ".join(option.choices)
        )
    yield _escape_text(first)
    for line in more:
        yield ".br"
        yield _escape_text(line)


def _format_argument(argument: Option) -> str:
    return _format_italic(argument.value)


def _build_heading(title: str, summary: str) -> list[str]:
    return [
        f'.TH {_escape_text(title.upper())} {SECTION} "" "Pointsman {__version__}" "Pointsman"',
        ".SH NAME",
        f"{_escape_text(title)} \\- {_escape_text(summary)}",
    ]


def _format_bold(text: str) -> str:
    return f"\\fB{_escape_text(text)}\\fR"


def _format_italic(text: str) -> str:
    return f"\\fI{_escape_text(text)}\\fR"


def _escape_text(text: str) -> str:
    """Nothing in it is an instruction to the formatter."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


def _join_lines(lines: Iterable[str]) -> str:
    return "\n".join([*lines, ""])


def main(argv: Sequence[str]) -> int:
    """Write all pages into the directory; the exit status is 2 when that is not what was asked."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m scripts.release.manual DIR\n")
        return 2
    directory = Path(argv[0])
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in build_pages().items():
        (directory / name).write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
