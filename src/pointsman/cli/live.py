"""Commands that put one question to the running proxy and print its answer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

from pointsman.cli.arguments import add_live, add_output, guarded, parser, print_json
from pointsman.cli.control_client import ask
from pointsman.cli.output import screen
from pointsman.screen import Screen


class _Answer(Protocol):
    @property
    def exit_status(self) -> int: ...


_Kind = TypeVar("_Kind", bound=_Answer)


def live_command(name: str, about: str) -> argparse.ArgumentParser:
    made = parser(name, about)
    add_output(made)
    add_live(made)
    return made


def answer_live(
    given: argparse.Namespace, name: str, kind: type[_Kind], text: Callable[[_Kind, Screen], str]
) -> int:
    """Ask at `/name`, print as text or JSON; the answer brings its exit status, 2 means that there is none."""

    def work() -> int:
        answer = ask(given.control_socket, f"/{name}", kind)
        if given.output == "json":
            print_json(answer)
        else:
            sys.stdout.write(text(answer, screen(given.color)))
        return answer.exit_status

    return guarded(name, work)
