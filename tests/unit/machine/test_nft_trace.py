"""Which events of a trace are its own."""

from __future__ import annotations

import pytest

from pointsman.machine.packet_filter import Action
from pointsman.machine.trace import TraceEvent


@pytest.mark.parametrize(
    ("table", "ours"),
    [
        ("ip pointsman-trace", True),
        ("ip6 pointsman-trace", True),
        ("ip my-pointsman-trace", False),
        ("ip my pointsman-trace", False),
        ("ip pointsman", False),
    ],
)
def test_only_the_table_of_that_very_name_is_ours(table: str, ours: bool) -> None:
    assert TraceEvent(packet=1, table=table, chain="output", handle=1, action=Action.PASS).is_own is ours
