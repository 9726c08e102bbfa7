"""`pointsman status`: what the running proxy is doing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pointsman.cli.arguments import add_live, add_output, create_parser
from pointsman.cli.control_client import ask
from pointsman.cli.output import print_answer, run_guarded
from pointsman.report.status import StatusReport, render_status
from pointsman.screen import Screen

_ABOUT = """Show the mode, syncs, pending changes, object counts, watches, configuration reloads and all problems."""


class _Answer(Protocol):
    @property
    def exit_status(self) -> int: ...


T = TypeVar("T", bound=_Answer)


def build_parser() -> argparse.ArgumentParser:
    return create_question_parser("status", _ABOUT)


def main(argv: Sequence[str]) -> int:
    """Return 0 when healthy or degraded, 1 when failing, 2 when no proxy answers."""
    return print_asked(build_parser().parse_args(argv), "status", StatusReport, render_status)


def create_question_parser(name: str, about: str) -> argparse.ArgumentParser:
    """Return the parser of a command about the running proxy that takes no other arguments."""
    made = create_parser(name, about)
    add_output(made)
    add_live(made)
    return made


def print_asked(
    given: argparse.Namespace, name: str, kind: type[T], render: Callable[[T, Screen], str]
) -> int:
    """Ask at `/name` and print; the answer brings its exit status, 2 means that there is none."""

    def work() -> int:
        answer = ask(given.control_socket, f"/{name}", kind)
        print_answer(given, answer, render)
        return answer.exit_status

    return run_guarded(name, work)
