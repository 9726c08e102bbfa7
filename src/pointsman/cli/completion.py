"""`pointsman completion`: scripts that let a shell complete commands, flags and their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from pointsman.cli.arguments import create_parser
from pointsman.cli.surface import Command, Option, Takes, describe_kube_proxy, list_commands, list_run_flags

_ABOUT = """Print a script that lets the shell complete commands, flags, their values and, where a proxy runs, the names of
Services.

source <(pointsman completion bash) works in bash and, with its name, in zsh and fish. To keep the script: in bash as
/usr/share/bash-completion/completions/pointsman, in zsh as _pointsman in a directory of $fpath, in fish as
~/.config/fish/completions/pointsman.fish."""

_PLAIN = "2>/dev/null | tr -cd 'a-z0-9./\\n-'"
"""Shells expand words before they offer them: a name from a manifest must not be able to run anything."""
_LIVE = {
    Takes.SERVICE: f"pointsman list -o name {_PLAIN}",
    Takes.NAMESPACE: f"pointsman list -o name {_PLAIN} | cut -d/ -f1 | sort -u",
    Takes.CLIENT: (
        "printf '%s\\n' pod node outside; "
        f"pointsman list --no-headers -o 'custom-columns=P:.endpoints[*].pod' 2>/dev/null | tr ', ' '\\n\\n' {_PLAIN} | grep '[a-z0-9]' | sort -u"
    ),
}
"""Commands that print the words, one per line."""


def build_parser() -> argparse.ArgumentParser:
    made = create_parser("completion", _ABOUT)
    made.add_argument("shell", choices=tuple(SHELLS), help="the shell to print a script for")
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0."""
    given = build_parser().parse_args(argv)
    sys.stdout.write(SHELLS[given.shell]())
    return 0


def render_bash() -> str:
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
        f'    "") words="{" ".join(each.name for each in list_commands())} --help --version" ;;',
    ]
    for each in (*list_commands(), describe_kube_proxy()):
        lines += [f"    {each.name})", '        case "$prev" in', *_render_bash_values(each)]
        lines += [
            "        *)",
            f'            if [[ $cur == -* ]]; then words="{" ".join(_list_names(each))}"',
        ]
        lines += [
            f"            else {_render_bash_choice(each.arguments[0]) if each.arguments else ':'}; fi ;;"
        ]
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


def _render_bash_values(each: Command) -> Iterator[str]:
    for option in _list_options(each):
        if option.takes is not Takes.NOTHING:
            yield f"        {'|'.join(option.names)}) {_render_bash_choice(option)} ;;"


def _render_bash_choice(option: Option) -> str:
    return {
        Takes.FILE: "files=1",
        Takes.CHOICE: f'words="{" ".join(option.choices)}"',
        **{takes: f"words=$({command})" for takes, command in _LIVE.items()},
    }.get(option.takes, ":")


def render_zsh() -> str:
    """For zsh, as an autoloaded function."""
    lines = [
        "#compdef pointsman kube-proxy",
        "# zsh completion for pointsman and kube-proxy, made by `pointsman completion zsh`",
        *(line for takes, command in _LIVE.items() for line in _render_zsh_words(takes, command)),
        "_pointsman() {",
        '    local context state state_descr line command="$service"',
        "    typeset -A opt_args",
        "    if [[ $service != kube-proxy ]]; then",
        "        if (( CURRENT == 2 )); then",
        "            local -a commands=(",
        *(f"                {_quote(f'{each.name}:{each.summary}')}" for each in list_commands()),
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
    for each in (*list_commands(), describe_kube_proxy()):
        lines += [f"    {each.name})", "        _arguments \\"]
        lines += [
            f"            {spec} \\" for option in _list_options(each) for spec in _render_zsh_option(option)
        ]
        lines += [
            f"            {_quote(f'*:{_render_zsh_value(argument)}')} \\" for argument in each.arguments[:1]
        ]
        lines += ["            && return ;;"]
    return "\n".join(
        [
            *lines,
            "    esac",
            "}",
            "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }",
            "compdef _pointsman pointsman kube-proxy",
            'if [[ $funcstack[1] == _pointsman ]]; then _pointsman "$@"; fi',
            "",
        ]
    )


def _render_zsh_words(takes: Takes, command: str) -> Iterator[str]:
    yield f"_pointsman_{takes.value}() {{"
    yield "    local -a found"
    yield f'    found=(${{(f)"$({command})"}})'
    yield "    compadd -a found"
    yield "}"


def _render_zsh_option(option: Option) -> Iterator[str]:
    meaning = _find_first_sentence(option).replace("[", "(").replace("]", ")")
    for name in option.names:
        value = "" if option.takes is Takes.NOTHING else f":{_render_zsh_value(option)}"
        equals = "=" if value and name.startswith("--") else ""
        yield _quote(f"*{name}{equals}[{meaning}]{value}")


def _render_zsh_value(option: Option) -> str:
    action = {
        Takes.FILE: "_files",
        Takes.CHOICE: f"({' '.join(option.choices)})",
        **{takes: f"_pointsman_{takes.value}" for takes in _LIVE},
    }.get(option.takes, " ")
    return f"{option.value.lower().replace(':', ' ')}:{action}"


def render_fish() -> str:
    """For fish."""
    none_yet = "__fish_use_subcommand"
    lines = [
        "# fish completion for pointsman and kube-proxy, made by `pointsman completion fish`",
        "complete -c pointsman -f",
        *(
            f"complete -c pointsman -n {none_yet} -a {each.name} -d {_quote(each.summary)}"
            for each in list_commands()
        ),
    ]
    for each in list_commands():
        seen = f"complete -c pointsman -n '__fish_seen_subcommand_from {each.name}'"
        lines += [f"{seen} {_render_fish_option(option)}" for option in _list_options(each)]
        lines += [f"{seen} {_render_fish_value(argument)}" for argument in each.arguments[:1]]
    lines += [
        f"complete -c kube-proxy {_render_fish_option(option)}"
        for option in _list_options(describe_kube_proxy())
    ]
    return "\n".join([*lines, ""])


def _render_fish_option(option: Option) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    return " ".join([*names, _render_fish_value(option), f"-d {_quote(_find_first_sentence(option))}"])


def _render_fish_value(option: Option) -> str:
    return {
        Takes.NOTHING: "-f",
        Takes.WORD: "-x",
        Takes.FILE: "-r -F",
        Takes.CHOICE: f"-x -a {_quote(' '.join(option.choices))}",
        **{takes: f"-x -a {_quote(f'({command})')}" for takes, command in _LIVE.items()},
    }[option.takes]


def _list_options(each: Command) -> tuple[Option, ...]:
    """All it takes; where a command has a flag of `run` itself, its own."""
    if not each.takes_run_flags:
        return each.options
    own = {name for option in each.options for name in option.names}
    return (*each.options, *(flag for flag in list_run_flags() if not own.intersection(flag.names)))


def _list_names(each: Command) -> list[str]:
    return [name for option in _list_options(each) for name in option.names]


def _find_first_sentence(option: Option) -> str:
    return option.help.partition("\n")[0].partition(". ")[0].replace("`", "").rstrip(".")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS: Mapping[str, Callable[[], str]] = {"bash": render_bash, "zsh": render_zsh, "fish": render_fish}
