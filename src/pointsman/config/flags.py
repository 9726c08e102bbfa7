"""The table of every flag, in the order of the help text, and what is made from it: help, the /flagz page, docs/flags.md."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from itertools import groupby

from pointsman.config.gates import render_gates
from pointsman.config.goflags import Flag
from pointsman.config.kube_proxy_flags import KUBE_PROXY_FLAGS
from pointsman.config.own_flags import OWN_FLAGS

FLAGS: tuple[Flag, ...] = (*KUBE_PROXY_FLAGS, *OWN_FLAGS)
BY_NAME: Mapping[str, Flag] = {flag.name: flag for flag in FLAGS}

MAX_HELP_WIDTH = 98


def render_help(program: str, width: int = 0) -> str:
    """Return the text of --help, for a terminal of that width if one is given."""
    lines = ["Usage:", f"  {program} [flags]"]
    lines += render_flags(min(width or MAX_HELP_WIDTH, MAX_HELP_WIDTH))
    return "\n".join(lines) + "\n"


def render_flags(width: int) -> list[str]:
    """Return all flags by group, with their meaning."""
    lines: list[str] = []
    for group, members in groupby(FLAGS, key=lambda flag: flag.group):
        lines += ["", f"{group} flags:", ""]
        for flag in members:
            lines += _render_flag(flag, width)
    return lines


def describe_flag(flag: Flag) -> str:
    """Return what the flag does, its default and what limits it."""
    text = flag.help
    if flag.default not in ("", "false", "0", "0s"):
        text += f" (default {flag.default})"
    if flag.deprecated:
        text += f" (DEPRECATED: {flag.deprecated})"
    if flag.fields and not flag.works_with_file:
        text += " Ignored with --config."
    return text


def _render_flag(flag: Flag, width: int) -> list[str]:
    short = f"-{flag.shorthand}, " if flag.shorthand else "    "
    alias = f", --{flag.alias}" if flag.alias else ""
    heading = f"  {short}--{flag.name}{alias} {flag.kind.value}".rstrip()
    indent = " " * 10
    body = [
        part
        for line in describe_flag(flag).splitlines()
        for part in textwrap.wrap(line, max(width - len(indent), 20)) or [""]
    ]
    return [heading, *(f"{indent}{line}" for line in body)]


def list_flag_texts(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return every flag with its current text, sorted by name."""
    return sorted((flag.name, texts.get(flag.name, flag.default)) for flag in FLAGS)


def render_document() -> str:
    """Return the text of docs/flags.md."""
    lines = [
        "# Flags",
        "",
        "Generated from the flag table in `src/pointsman/config/flags.py` by `python -m pointsman.config.flags`.",
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
    lines += ["", "## Feature gates", "", "```", *render_gates().splitlines(), "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(render_document(), end="")
