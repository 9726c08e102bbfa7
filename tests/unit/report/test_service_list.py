"""What `pointsman list` asks, on its way to the proxy."""

from __future__ import annotations

import msgspec
import pytest

from pointsman.model.decision import State
from pointsman.report.labels import parse_selector
from pointsman.report.service_list import ListQuery


@pytest.mark.parametrize(
    "query",
    [
        ListQuery(),
        ListQuery(
            "shop",
            parse_selector("app=web,!legacy"),
            ("web", "shop/*"),
            (State.DOWN, State.PARTIAL),
            True,
        ),
    ],
)
def test_a_query_travels_as_json(query: ListQuery) -> None:
    assert msgspec.json.decode(msgspec.json.encode(query), type=ListQuery) == query
