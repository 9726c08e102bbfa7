"""`pointsman completion`: scripts that let a shell complete commands, flags and their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from pointsman.cli.arguments import parser
from pointsman.cli.surface import Command, Option, Takes, commands, kube_proxy, run_flags

_ABOUT = """Print a script that lets the shell complete commands, flags, their values and, where a proxy runs, the names of
Services.

bash: source <(pointsman completion bash), or keep it as /usr/share/bash-completion/completions/pointsman.
zsh: keep it as _pointsman in a directory of $fpath. fish: keep it as ~/.config/fish/completions/pointsman.fish."""

_SERVICES = "pointsman list -o name 2>/dev/null"
_SERVICES_FOR_BASH = f"{_SERVICES} | tr -cd 'a-z0-9./\\n-'"
"""bash expands words before it offers them: a name from a manifest must not be able to run anything."""


def command() -> argparse.ArgumentParser:
    made = parser("completion", _ABOUT)
    made.add_argument("shell", choices=tuple(SHELLS), help="whose script to print")
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0."""
    given = command().parse_args(argv)
    sys.stdout.write(SHELLS[given.shell]())
    return 0


def bash() -> str:
    """For bash 4 and later; needs nothing else."""
    lines = [
        "# bash completion for pointsman and kube-proxy, made by `pointsman completion bash`",
        "_pointsman() {",
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words= files= command= word",
        "    if [[ $cur == = ]]; then cur=",
        "    elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi",
        '    if [[ ${COMP_WORDS[0]##*/} == kube-proxy ]]; then command="kube-proxy"; else',
        '        for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        "            if [[ $word != -* ]]; then command=$word; break; fi",
        "        done",
        "    fi",
        '    case "$command" in',
        f'    "") words="{" ".join(each.name for each in commands())} --help --version" ;;',
    ]
    for each in (*commands(), kube_proxy()):
        lines += [f"    {each.name})", '        case "$prev" in', *_bash_values(each)]
        lines += ["        *)", f'            if [[ $cur == -* ]]; then words="{" ".join(_names(each))}"']
        lines += [f"            else {_bash_choice(each.arguments[0]) if each.arguments else ':'}; fi ;;"]
        lines += ["        esac ;;"]
    lines += [
        "    esac",
        "    if [[ -n $files ]]; then",
        "        compopt -o filenames 2>/dev/null",
        '        mapfile -t COMPREPLY < <(compgen -f -- "$cur")',
        '    else mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur"); fi',
        "}",
        "complete -F _pointsman pointsman kube-proxy",
        "",
    ]
    return "\n".join(lines)


def _bash_values(each: Command) -> Iterator[str]:
    for option in _options(each):
        if option.takes is not Takes.NOTHING:
            yield f"        {'|'.join(option.names)}) {_bash_choice(option)} ;;"


def _bash_choice(option: Option) -> str:
    return {
        Takes.FILE: "files=1",
        Takes.SERVICE: f"words=$({_SERVICES_FOR_BASH})",
        Takes.CHOICE: f'words="{" ".join(option.choices)}"',
    }.get(option.takes, ":")


def zsh() -> str:
    """For zsh, as an autoloaded function."""
    lines = [
        "#compdef pointsman kube-proxy",
        "# zsh completion for pointsman and kube-proxy, made by `pointsman completion zsh`",
        "_pointsman_services() {",
        "    local -a services",
        f'    services=(${{(f)"$({_SERVICES})"}})',
        "    compadd -a services",
        "}",
        "_pointsman() {",
        '    local context state state_descr line command="$service"',
        "    typeset -A opt_args",
        "    if [[ $service != kube-proxy ]]; then",
        "        if (( CURRENT == 2 )); then",
        "            local -a commands=(",
        *(f"                {_quoted(f'{each.name}:{each.summary}')}" for each in commands()),
        "            )",
        "            _describe command commands",
        "            return",
        "        fi",
        "        command=$words[2]",
        "        shift words",
        "        (( CURRENT-- ))",
        "    fi",
        '    case "$command" in',
    ]
    for each in (*commands(), kube_proxy()):
        lines += [f"    {each.name})", "        _arguments \\"]
        lines += [f"            {spec} \\" for option in _options(each) for spec in _zsh_option(option)]
        lines += [f"            {_quoted(f'*:{_zsh_value(argument)}')} \\" for argument in each.arguments[:1]]
        lines += ["            && return ;;"]
    return "\n".join([*lines, "    esac", "}", '_pointsman "$@"', ""])


def _zsh_option(option: Option) -> Iterator[str]:
    meaning = _first_sentence(option).replace("[", "(").replace("]", ")")
    for name in option.names:
        value = "" if option.takes is Takes.NOTHING else f":{_zsh_value(option)}"
        equals = "=" if value and name.startswith("--") else ""
        yield _quoted(f"*{name}{equals}[{meaning}]{value}")


def _zsh_value(option: Option) -> str:
    action = {
        Takes.FILE: "_files",
        Takes.SERVICE: "_pointsman_services",
        Takes.CHOICE: f"({' '.join(option.choices)})",
    }.get(option.takes, " ")
    return f"{option.value.lower().replace(':', ' ')}:{action}"


def fish() -> str:
    """For fish."""
    none_yet = "__fish_use_subcommand"
    lines = [
        "# fish completion for pointsman and kube-proxy, made by `pointsman completion fish`",
        "complete -c pointsman -f",
        *(
            f"complete -c pointsman -n {none_yet} -a {each.name} -d {_quoted(each.summary)}"
            for each in commands()
        ),
    ]
    for each in commands():
        seen = f"complete -c pointsman -n '__fish_seen_subcommand_from {each.name}'"
        lines += [f"{seen} {_fish_option(option)}" for option in _options(each)]
        lines += [f"{seen} {_fish_value(argument)}" for argument in each.arguments[:1]]
    lines += [f"complete -c kube-proxy {_fish_option(option)}" for option in _options(kube_proxy())]
    return "\n".join([*lines, ""])


def _fish_option(option: Option) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    return " ".join([*names, _fish_value(option), f"-d {_quoted(_first_sentence(option))}"])


def _fish_value(option: Option) -> str:
    return {
        Takes.NOTHING: "-f",
        Takes.WORD: "-x",
        Takes.FILE: "-r -F",
        Takes.SERVICE: f"-x -a '({_SERVICES})'",
        Takes.CHOICE: f"-x -a {_quoted(' '.join(option.choices))}",
    }[option.takes]


def _options(each: Command) -> tuple[Option, ...]:
    """All it takes; where a command has a flag of `run` itself, its own."""
    if not each.takes_run_flags:
        return each.options
    own = {name for option in each.options for name in option.names}
    return (*each.options, *(flag for flag in run_flags() if not own.intersection(flag.names)))


def _names(each: Command) -> list[str]:
    return [name for option in _options(each) for name in option.names]


def _first_sentence(option: Option) -> str:
    return option.help.partition("\n")[0].partition(". ")[0].replace("`", "").rstrip(".")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS: Mapping[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
