"""`pointsman version`: which version this is, in a line, in detail or for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pointsman import KUBERNETES_VERSION, __version__

if TYPE_CHECKING:
    import argparse

_ABOUT = "Print the version of Pointsman and of the kube-proxy whose flags, fields and metrics it follows."
RAW = "raw"


def build_parser() -> argparse.ArgumentParser:
    from pointsman.cli.arguments import add_output, create_parser

    made = create_parser("version", _ABOUT)
    made.add_argument("style", nargs="?", choices=(RAW,), help="raw: every detail, one per line")
    add_output(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Without arguments it needs no parser, and so no time."""
    if not argv:
        sys.stdout.write(render_version())
        return 0
    made = build_parser()
    given = made.parse_args([argument.replace(f"--{RAW}", RAW) for argument in argv])
    if given.style and given.output != "text":
        made.error(f"not with -o {given.output}: {RAW}")
    from pointsman.cli.output import print_answer

    print_answer(given, collect_details(), lambda _details, _screen: render_version(given.style or ""))
    return 0


def render_version(style: str = "") -> str:
    """One line, or with `raw` every detail."""
    if style == RAW:
        return "".join(f"{name}: {value}\n" for name, value in collect_details().items())
    return f"Pointsman {__version__} (kube-proxy {KUBERNETES_VERSION} compatible)\n"


def collect_details() -> dict[str, str]:
    """Return the versions of the program and of what it runs on."""
    import platform

    return {
        "pointsman": __version__,
        "surface": f"kube-proxy {KUBERNETES_VERSION}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system().lower()}/{platform.machine()}",
        "kernel": platform.release(),
    }
