"""`pointsman completion`: lets a shell complete commands, flags and their values.

The script of a shell only asks this program, at each Tab, what may follow the words typed so far. So it never gets outdated, and names of
Services and pods come from the running proxy.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pointsman.cli.arguments import Parser, create_parser
from pointsman.files import CONTROL_SOCKET

if TYPE_CHECKING:
    from pointsman.cli.surface import Option

_ABOUT = """Print a script that lets the shell complete commands, flags, their values and, where a proxy runs, the names of
Services, namespaces and pods.

source <(pointsman completion bash) works in bash and, with its name, in zsh and fish. To keep the script: in bash as
/usr/share/bash-completion/completions/pointsman, in zsh as _pointsman in a directory of $fpath, in fish as
~/.config/fish/completions/pointsman.fish."""

WORDS: Final = "words"
"""`pointsman completion words PROGRAM WORD...` prints what may stand in the place of the last word, which is empty or half typed."""
FILES: Final = ":files"
"""Printed where the shell shall offer its files."""
_HARMLESS = re.compile(r"[a-z0-9./-]+")
"""Names that no shell takes for a command."""

_BASH = f"""\
_pointsman() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}}
    [[ $cur == = ]] && cur=
    mapfile -t COMPREPLY < <(pointsman completion {WORDS} "${{COMP_WORDS[@]:0:COMP_CWORD+1}}" 2>/dev/null)
    COMPREPLY=("${{COMPREPLY[@]%%$'\\t'*}}")
    if [[ ${{COMPREPLY[0]}} == {FILES} ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}}
complete -F _pointsman pointsman kube-proxy
"""
_ZSH = f"""\
#compdef pointsman kube-proxy
_pointsman() {{
    local -a found shown
    found=("${{(@f)$(pointsman completion {WORDS} "${{(@)words[1,CURRENT]}}" 2>/dev/null)}}")
    if [[ $found[1] == {FILES} ]]; then
        _files
    elif [[ -n $found[1] ]]; then
        shown=("${{(@)found/$'\\t'/  -- }}")
        found=("${{(@)found%%$'\\t'*}}")
        compadd -l -d shown -a found
    fi
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
compdef _pointsman pointsman kube-proxy
if [[ $funcstack[1] == _pointsman ]]; then _pointsman "$@"; fi
"""
_FISH = f"""\
function __pointsman_complete
    set -l current (commandline -ct)
    set -l found (pointsman completion {WORDS} (commandline -opc) "$current" 2>/dev/null)
    if test "$found[1]" = {FILES}
        __fish_complete_path "$current"
    else
        printf '%s\\n' $found
    end
end
complete -c pointsman -f -a '(__pointsman_complete)'
complete -c kube-proxy -f -a '(__pointsman_complete)'
"""
SHELLS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def build_parser() -> Parser:
    made = create_parser("completion", _ABOUT)
    made.add_argument("shell", choices=tuple(SHELLS), help="the shell to print a script for")
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0."""
    if argv[:1] == [WORDS]:
        for word, about in find_words(argv[1:]):
            sys.stdout.write(f"{word}\t{about}\n" if about else f"{word}\n")
    else:
        sys.stdout.write(SHELLS[build_parser().parse_args(argv).shell])
    return 0


def find_words(typed: Sequence[str]) -> list[tuple[str, str]]:
    """Return what may stand in the place of the last word, each with a text about it."""
    program, *before, current = (
        (word for word in typed if word != "=") if typed[-1] != "=" else (*typed[:-1], "")
    )
    lead = ""
    if current.startswith("--") and "=" in current:
        name, _, current = current.partition("=")
        before, lead = [*before, name], f"{name}="
    found = _list_words(Path(program).name, before, current)
    return [(lead + word, about) for word, about in found if word == FILES or word.startswith(current)]


def _list_words(program: str, before: Sequence[str], current: str) -> Iterable[tuple[str, str]]:
    from pointsman.cli.main import SUBCOMMANDS
    from pointsman.cli.surface import describe_command, describe_kube_proxy

    if program == "kube-proxy":
        command = describe_kube_proxy()
    else:
        name = next((word for word in before if not word.startswith("-")), "")
        if name not in SUBCOMMANDS:
            return [] if name else [*SUBCOMMANDS.items(), ("--help", ""), ("--version", "")]
        command = describe_command(name)
    options = command.all_options
    previous = before[-1] if before else ""
    for option in options:
        if option.value and previous in option.names:
            return _list_values(option, before)
    if current.startswith("-"):
        return [(name, option.help.partition(". ")[0]) for option in options for name in option.names]
    return _list_values(command.arguments[0], before) if command.arguments else []


def _list_values(option: Option, before: Sequence[str]) -> Iterable[tuple[str, str]]:
    if option.is_path:
        return [(FILES, "")]
    values = option.choices or filter(_HARMLESS.fullmatch, _ask_values(option.destination, before))
    return [(value, "") for value in dict.fromkeys(values)]


def _ask_values(destination: str, before: Sequence[str]) -> Iterable[str]:
    """Return the values that the running proxy knows for an argument, by what commands call it."""
    if destination not in ("target", "services", "namespace", "client"):
        return ()
    from pointsman.cli.control_client import NoProxy, ask
    from pointsman.report.service_list import ListQuery, ServiceList

    given = (Path(value) for flag, value in pairwise(before) if flag == "--control-socket")
    query = ListQuery(detailed=destination == "client")
    try:
        ports = ask(next(given, CONTROL_SOCKET), "/list", ServiceList, query).ports
    except NoProxy:
        ports = ()
    if destination == "client":
        return ("pod", "node", "outside", *sorted(one.pod for port in ports for one in port.endpoints))
    if destination == "namespace":
        return (port.service.partition("/")[0] for port in ports)
    return (port.service for port in ports)
