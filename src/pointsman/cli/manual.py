"""Man pages made from the parsers: `python -m pointsman.cli.manual DIR` writes one per program and command.

No date and no path of the machine is in them, so the same source always gives the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from pointsman import __version__
from pointsman.cli.surface import Command, Option, commands, kube_proxy, kubectl_plugin

SECTION = 8
_ABOUT = """Pointsman turns Services and EndpointSlices, from an API server or from files, into nftables, iptables or ipvs rules
of this node, as kube-proxy does, and explains where any packet goes. Packets never pass through it."""


def pages() -> dict[str, str]:
    """Every page by its file name."""
    known = list(commands())
    found = {f"pointsman.{SECTION}": _overview(known)}
    for each in known:
        found[f"pointsman-{each.name}.{SECTION}"] = _page(
            each, f"pointsman-{each.name}", f"pointsman {each.name}"
        )
    alias, plugin = kube_proxy(), kubectl_plugin()
    found[f"kube-proxy.{SECTION}"] = _page(alias, alias.name, alias.name)
    found[f"{plugin.name}.{SECTION}"] = _page(plugin, plugin.name, "kubectl pointsman")
    return found


def _overview(known: Sequence[Command]) -> str:
    lines = _heading("pointsman", "a Service proxy that explains its rules")
    lines += [".SH SYNOPSIS", _bold("pointsman"), _italic("COMMAND"), "[flags]"]
    lines += [".SH DESCRIPTION", _text(_ABOUT), ".SH COMMANDS"]
    for each in known:
        lines += [".TP", f"{_bold('pointsman ' + each.name)}", _text(each.summary) + "; see"]
        lines += [f".BR pointsman\\-{_text(each.name)} ({SECTION})"]
    return _joined(lines)


def _page(each: Command, title: str, called: str) -> str:
    lines = _heading(title, each.summary)
    lines += [".SH SYNOPSIS", _bold(called), "[flags]", *map(_argument_name, each.arguments)]
    lines += [".SH DESCRIPTION"]
    for number, paragraph in enumerate(each.about):
        lines += [*([".PP"] if number else []), _text(paragraph)]
    if each.arguments:
        lines += [".SH ARGUMENTS"]
        for argument in each.arguments:
            lines += [".TP", _argument_name(argument), *_meaning(argument)]
    for group, options in groupby(each.options, key=lambda option: option.group):
        lines += [f".SH {_text(group.upper()) + ' ' if group else ''}OPTIONS", *_option_list(options)]
    if each.takes_run_flags:
        lines += [".PP", "The flags of", f".BR pointsman\\-run ({SECTION})", "are taken as well."]
    lines += [".SH SEE ALSO", f".BR pointsman ({SECTION})"]
    return _joined(lines)


def _option_list(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        value = f" {_italic(option.value)}" if option.value else ""
        yield ".TP"
        yield f"{', '.join(map(_bold, option.names))}{value}"
        yield from _meaning(option)


def _meaning(option: Option) -> Iterator[str]:
    first, *more = option.help.splitlines() or [""]
    if option.choices and not all(choice in first for choice in option.choices):
        first = (
            f"{first.rstrip('.')}. One of: {', '.join(option.choices)}."
            if first
            else ", ".join(option.choices)
        )
    yield _text(first)
    for line in more:
        yield ".br"
        yield _text(line)


def _argument_name(argument: Option) -> str:
    return _italic(argument.value)


def _heading(title: str, summary: str) -> list[str]:
    return [
        f'.TH {_text(title.upper())} {SECTION} "" "Pointsman {__version__}" "Pointsman"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(summary)}",
    ]


def _bold(text: str) -> str:
    return f"\\fB{_text(text)}\\fR"


def _italic(text: str) -> str:
    return f"\\fI{_text(text)}\\fR"


def _text(text: str) -> str:
    """Nothing in it is an instruction to the formatter."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


def _joined(lines: Iterable[str]) -> str:
    return "\n".join([*lines, ""])


def main(argv: Sequence[str]) -> int:
    """Write all pages into the directory; the exit status is 2 when that is not what was asked."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m pointsman.cli.manual DIR\n")
        return 2
    directory = Path(argv[0])
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (directory / name).write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
