"""Entry points: `pointsman SUBCOMMAND` and `kube-proxy`, which is `pointsman run` under kube-proxy's name.

Each sub-command is a module of this package, imported only when it is asked for, so that `pointsman version` does not
load an HTTP client.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

from pointsman import KUBERNETES_VERSION, __version__
from pointsman.suggestions import did_you_mean

_SUBCOMMANDS: Mapping[str, str] = {
    "run": "program this node's Services, from the API server or from manifests",
    "render": "print the rules for a set of manifests, without a cluster",
    "explain": "say why a Service does or does not answer here",
    "status": "show what the running proxy is doing",
    "verify": "compare the kernel with what it should hold",
    "cleanup": "remove everything a proxy put into the kernel",
    "demo": "try it in a network namespace of its own",
    "check": "validate a configuration and print the effective one",
    "version": "print the version",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; the exit status is 2 when there is no such one."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "help"
    if name in ("help", "-h", "--help"):
        sys.stdout.write(usage())
        return 0 if arguments else 2
    if name in ("version", "--version"):
        sys.stdout.write(version_text(*arguments[1:2]))
        return 0
    if name == "run":
        return _run(arguments[1:], program="pointsman")
    if name not in _SUBCOMMANDS:
        close = did_you_mean(name, _SUBCOMMANDS)
        sys.stderr.write(f"pointsman: unknown sub-command {name}{close}\n\n{usage()}")
        return 2
    try:
        command = importlib.import_module(f"pointsman.cli.{name}")
    except ModuleNotFoundError as missing:
        if missing.name != f"pointsman.cli.{name}":
            raise
        sys.stderr.write(f"pointsman: the sub-command {name} is not part of this installation\n")
        return 2
    return int(command.main(arguments[1:]))


def kube_proxy_main(argv: Sequence[str] | None = None) -> int:
    """Run as kube-proxy: its flags, its defaults."""
    return _run(sys.argv[1:] if argv is None else argv, program="kube-proxy")


def _run(argv: Sequence[str], *, program: str) -> int:
    command = importlib.import_module("pointsman.cli.run")
    return int(command.main(argv, program=program))


def usage() -> str:
    """The list of sub-commands."""
    width = max(map(len, _SUBCOMMANDS))
    lines = ["Usage: pointsman SUBCOMMAND [flags]", ""]
    lines += [f"  {name:{width}}  {meaning}" for name, meaning in _SUBCOMMANDS.items()]
    lines += [
        "",
        "`pointsman SUBCOMMAND --help` tells more. Installed as kube-proxy it takes kube-proxy's flags.",
        "",
    ]
    return "\n".join(lines)


def version_text(style: str = "") -> str:
    """One line, or with `raw` (or `--raw`) every detail."""
    line = f"Pointsman {__version__} (kube-proxy {KUBERNETES_VERSION} compatible)\n"
    if style.lstrip("-") != "raw":
        return line
    import platform

    details = {
        "pointsman": __version__,
        "surface": f"kube-proxy {KUBERNETES_VERSION}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system().lower()}/{platform.machine()}",
        "kernel": platform.release(),
    }
    return "".join(f"{name}: {value}\n" for name, value in details.items())
