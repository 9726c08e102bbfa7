"""Questions to the running proxy: one whose answer is printed, or the same one again and again."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from pointsman.cli.arguments import add_live, add_output, create_parser, print_answer, run_guarded, warn
from pointsman.cli.control_client import NoProxy, ask
from pointsman.screen import Screen


class _Answer(Protocol):
    @property
    def exit_status(self) -> int: ...


_Kind = TypeVar("_Kind", bound=_Answer)
T = TypeVar("T")

_POLL_SECONDS = 1.0


def create_live_parser(name: str, about: str) -> argparse.ArgumentParser:
    made = create_parser(name, about)
    add_output(made)
    add_live(made)
    return made


def run_live(
    given: argparse.Namespace, name: str, kind: type[_Kind], text: Callable[[_Kind, Screen], str]
) -> int:
    """Ask at `/name`, print as text or JSON; the answer brings its exit status, 2 means that there is none."""

    def work() -> int:
        answer = ask(given.control_socket, f"/{name}", kind)
        print_answer(given, answer, text)
        return answer.exit_status

    return run_guarded(name, work)


def poll(command: str, ask_again: Callable[[], T]) -> Iterator[T | None]:
    """Yield an answer every second until interrupted; None while there is no proxy, which is waited for."""
    is_gone = False
    while True:
        time.sleep(_POLL_SECONDS)
        try:
            answer = ask_again()
        except NoProxy as error:
            if not is_gone:
                warn(command, [str(error)])
            is_gone = True
            yield None
        else:
            is_gone = False
            yield answer
