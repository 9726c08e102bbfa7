"""What is said at start about a configuration that asks for more than the mode has."""

from __future__ import annotations

import pytest

from pointsman.app.announcements import announce
from pointsman.backends import mode_named
from pointsman.config.command_line import parse_run
from pointsman.kube.event_recorder import Recorder


class Notes(Recorder):
    """Keeps the events of the node."""

    def __init__(self) -> None:
        self.node: list[tuple[str, str]] = []

    def node_event(self, reason: str, note: str, *, warning: bool = True) -> None:
        del warning
        self.node.append((reason, note))

    def service_event(self, key: str, reason: str, note: str, *, action: str = "") -> None:
        """No Service is told at start."""


@pytest.mark.parametrize(
    ("mode", "flags", "said"),
    [
        ("nftables", ["--default-scheduler=source-hash", "--default-slow-start=30s"], []),
        ("iptables", ["--default-scheduler=weighted"], []),
        ("iptables", ["--default-scheduler=source-hash"], ["endpoints are chosen at random"]),
        ("ipvs", ["--default-scheduler=weighted"], ["--ipvs-scheduler decides there"]),
        ("iptables", ["--default-slow-start=30s"], ["full share at once"]),
    ],
)
def test_defaults_that_a_mode_cannot_have_are_named(mode: str, flags: list[str], said: list[str]) -> None:
    notes = Notes()
    announce(parse_run(flags, program="pointsman"), mode_named(mode), notes)
    found = [note for reason, note in notes.node if reason == "BalancingNotPossible"]
    assert [note.endswith(words) for note, words in zip(found, said, strict=True)] == [True] * len(said)
