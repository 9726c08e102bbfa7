"""What is made from the flag table: the help text, the /flagz page and docs/flags.md."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from itertools import groupby

from pointsman.config.flag_table import FLAGS
from pointsman.config.gates import gates_help
from pointsman.config.goflags import Flag

USUAL_WIDTH = 98


def flags_help(program: str, width: int = 0) -> str:
    """The text of --help, for a terminal of that width if one is given."""
    lines = ["Usage:", f"  {program} [flags]"]
    lines += flags_lines(min(width or USUAL_WIDTH, USUAL_WIDTH))
    return "\n".join(lines) + "\n"


def flags_lines(width: int) -> list[str]:
    """All flags by group, with their meaning."""
    lines: list[str] = []
    for group, members in groupby(FLAGS, key=lambda flag: flag.group):
        lines += ["", f"{group} flags:", ""]
        for flag in members:
            lines += _flag_help(flag, width)
    return lines


def flag_meaning(flag: Flag) -> str:
    """What the flag does, its default and what limits it."""
    text = flag.help
    if flag.default not in ("", "false", "0", "0s"):
        text += f" (default {flag.default})"
    if flag.deprecated:
        text += f" (DEPRECATED: {flag.deprecated})"
    if flag.fields and not flag.works_with_file:
        text += " Ignored with --config."
    return text


def _flag_help(flag: Flag, width: int) -> list[str]:
    short = f"-{flag.shorthand}, " if flag.shorthand else "    "
    alias = f", --{flag.alias}" if flag.alias else ""
    heading = f"  {short}--{flag.name}{alias} {flag.kind.value}".rstrip()
    indent = " " * 10
    body = [
        part
        for line in flag_meaning(flag).splitlines()
        for part in textwrap.wrap(line, max(width - len(indent), 20)) or [""]
    ]
    return [heading, *(f"{indent}{line}" for line in body)]


def flagz(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Every flag with its current text, sorted by name, for the /flagz page."""
    return sorted((flag.name, texts.get(flag.name, flag.default)) for flag in FLAGS)


def flags_document() -> str:
    """docs/flags.md."""
    lines = [
        "# Flags",
        "",
        "Generated from the flag table in `src/pointsman/config/flag_table.py` by `python -m pointsman.config.flags`.",
        "",
        "`kube-proxy` and `pointsman run` take the same flags, in Go's syntax: `--name=value`, `--name value`, bare",
        "`--switch`, `--switch=false`, `-v=2`. Durations are written `1h30m`; lists and maps are separated by commas",
        "and add up when repeated; underscores in names count as dashes. Arguments besides flags are an error.",
        "",
        "With `--config`, flags marked *no* in the last column are ignored, and a warning names each one given.",
        "",
        "Different from kube-proxy, on purpose: `--metrics-port=0` and an empty `--metrics-bind-address` do disable the",
        "metrics server, as their help texts promise; `--healthz-port` and `--metrics-port` do set the port; the",
        "default health and metrics addresses follow the family of `--bind-address` also when it is a flag.",
    ]
    for group, members in groupby(FLAGS, key=lambda flag: flag.group):
        lines += [
            "",
            f"## {group}",
            "",
            "| Flag | Type | Default | Meaning | With --config |",
            "|---|---|---|---|---|",
        ]
        for flag in members:
            name = f"`-{flag.shorthand}`, `--{flag.name}`" if flag.shorthand else f"`--{flag.name}`"
            if flag.alias:
                name += f", `--{flag.alias}`"
            meaning = flag.help.partition("\n")[0].replace("|", "\\|")
            if flag.deprecated:
                meaning += f" Deprecated: {flag.deprecated}."
            default = f"`{flag.default}`" if flag.default else ""
            counts = "yes" if flag.works_with_file else "no"
            lines.append(f"| {name} | {flag.kind.value or 'bool'} | {default} | {meaning} | {counts} |")
    lines += ["", "## Feature gates", "", "```", *gates_help().splitlines(), "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(flags_document(), end="")
