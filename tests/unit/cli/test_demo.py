"""Parts of `pointsman demo` that need no cluster; tests/e2e runs all of it."""

from __future__ import annotations

from pointsman.cli.demo import read_sync_seconds
from pointsman.lab.netns import Namespace


class Closed(Namespace):
    def __init__(self) -> None:
        self.fd = -1


def test_a_namespace_that_cannot_be_entered_tells_no_times() -> None:
    assert read_sync_seconds(Closed()) == {}
