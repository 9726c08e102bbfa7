"""Entry points: `pointsman SUBCOMMAND` and `kube-proxy`, which is `pointsman run` under kube-proxy's name.

Each sub-command is a module of this package, imported only when it is asked for, so that `pointsman version` does not
load an HTTP client.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

from pointsman.cli.output import deliver_output, detect_screen

SUBCOMMANDS: Mapping[str, str] = {
    "run": "program this node's Services, from the API server or from manifests",
    "render": "print the rules for a set of manifests, without a cluster",
    "explain": "explain why a Service does or does not answer on this node",
    "trace": "follow a real packet to a Service through every rule of this node",
    "status": "show what the running proxy is doing",
    "list": "list Services with their ports, endpoints and state",
    "top": "show connections per second, active flows and shares of endpoints",
    "events": "show what changed: endpoints, Services, syncs, conditions, reloads",
    "simulate": "show where the traffic of a cluster goes, and the effect of a change",
    "verify": "compare the rules in the kernel with the desired ones",
    "report": "collect what a bug report needs into one archive, without credentials",
    "cleanup": "remove everything that Pointsman added to the kernel, and restore settings",
    "demo": "try it in a small cluster of network namespaces",
    "check": "validate a configuration and print the effective one",
    "completion": "print a script that completes commands and flags in your shell",
    "version": "print the version",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; the exit status is 2 for an unknown one."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if arguments[:1] == ["run"]:
        return _run(arguments[1:], program="pointsman")
    return deliver_output("pointsman", lambda: _run_subcommand(arguments))


def _run_subcommand(arguments: Sequence[str]) -> int:
    name = arguments[0] if arguments else "help"
    if name in ("help", "-h", "--help"):
        sys.stdout.write(render_usage(detect_screen().width))
        return 0 if arguments else 2
    name = "version" if name == "--version" else name
    if name not in SUBCOMMANDS:
        from pointsman.text import did_you_mean

        close = did_you_mean(name, SUBCOMMANDS)
        sys.stderr.write(f"pointsman: unknown sub-command {name}{close}\n\n{render_usage()}")
        return 2
    command = importlib.import_module(f"pointsman.cli.{name}")
    return int(command.main(arguments[1:]))


def kube_proxy_main(argv: Sequence[str] | None = None) -> int:
    """Run as kube-proxy: its flags, its defaults."""
    return _run(sys.argv[1:] if argv is None else argv, program="kube-proxy")


def _run(argv: Sequence[str], *, program: str) -> int:
    command = importlib.import_module("pointsman.cli.run")
    return int(command.main(argv, program=program))


def render_usage(width: int = 0) -> str:
    """Return the list of sub-commands, for a terminal of that width if one is given."""
    import textwrap

    longest = max(map(len, SUBCOMMANDS))
    lines = ["Usage: pointsman SUBCOMMAND [flags]", ""]
    for name, meaning in SUBCOMMANDS.items():
        indent = " " * (longest + 4)
        entry = f"  {name:{longest}}  {meaning}"
        lines += textwrap.wrap(entry, width, subsequent_indent=indent) if width else [entry]
    more = "Run `pointsman SUBCOMMAND --help` for details. Under the name kube-proxy, the program accepts kube-proxy's flags."
    lines += ["", *(textwrap.wrap(more, width) if width else [more]), ""]
    return "\n".join(lines)
