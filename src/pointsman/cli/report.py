"""`pointsman report`: what a bug report needs, in one archive, without credentials."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pointsman.app.bug_report import collect_machine_parts
from pointsman.cli.arguments import add_colour, add_live, create_parser
from pointsman.cli.control_client import NoProxy, request
from pointsman.cli.output import detect_screen, run_guarded
from pointsman.errors import PointsmanError
from pointsman.kernel.command import SystemCommands
from pointsman.report.archive import Part, build_archive, redact_parts, render_archive

_ABOUT = """Collect what a bug report needs into one .tar.gz: status, configuration, flags, metrics and the last log lines of
the running proxy, how the kernel differs from its plans, rules, kernel settings, routes, counts of tracked connections,
versions. Prints what is inside. Changes nothing.

Tokens, passwords, keys and certificates are left out. Names and addresses are not: --no-rules leaves the rules out,
which name every Service."""

_OF_THE_PROXY = (
    ("status.json", "/status", "what `pointsman status -o json` prints"),
    ("configuration.json", "/configz", "the configuration in use"),
    ("flags.txt", "/flagz", "the flags it was started with"),
    ("metrics.txt", "/metrics", "all metrics"),
    ("log.txt", "/log", "its last log lines"),
)
_STANDARD_OUTPUT = Path("-")
_VERIFICATION = ("verification.json", "/verify", "how the kernel differs from the plans")


def build_parser() -> argparse.ArgumentParser:
    made = create_parser("report", _ABOUT)
    made.add_argument(
        "-f",
        "--file",
        type=Path,
        help="the archive to write, - for standard output; default pointsman-report-NODE-TIME.tar.gz here",
    )
    made.add_argument("--no-rules", action="store_true", help="leave out the rules and their differences")
    add_colour(made)
    add_live(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status 0 when complete, 1 without the running proxy's part, 2 when nothing could be written."""
    made = build_parser()
    given = made.parse_args(argv)
    if given.file == _STANDARD_OUTPUT and sys.stdout.isatty():
        made.error("refusing to write an archive to a terminal: send it to a file, as in > report.tar.gz")
    return run_guarded("report", lambda: _write_report(given))


def _write_report(given: argparse.Namespace) -> int:
    at = time.time()
    of_proxy = list(_collect_from_proxy(given.control_socket, rules=not given.no_rules))
    parts = redact_parts([*of_proxy, *collect_machine_parts(SystemCommands(), rules=not given.no_rules)])
    node = re.sub(r"[^\w.-]", "_", platform.node()) or "node"
    name = f"pointsman-report-{node}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}"
    path = given.file or Path(f"{name}.tar.gz")
    packed = build_archive(name, parts, at)
    if path == _STANDARD_OUTPUT:
        sys.stdout.buffer.write(packed)
        sys.stderr.write(render_archive("standard output", len(packed), parts))
    else:
        _write(path, packed)
        sys.stdout.write(render_archive(str(path), len(packed), parts, detect_screen(given.color)))
    return 1 if all(part.missing for part in of_proxy) else 0


def _collect_from_proxy(control_socket: Path, *, rules: bool) -> Iterator[Part]:
    for name, route, about in (*_OF_THE_PROXY, *([_VERIFICATION] if rules else [])):
        try:
            yield Part(name, about, request(control_socket, route).decode(errors="replace"))
        except NoProxy as error:
            yield Part(name, about, missing=str(error))


def _write(path: Path, packed: bytes) -> None:
    """Create a file for its owner only; an existing one is an error."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(packed)
    except OSError as error:
        raise PointsmanError(
            f"cannot write {path}: {error.strerror}; name another one with --file"
        ) from error
