"""What `pointsman list` asks, on its way to the proxy."""

from __future__ import annotations

import pytest

from pointsman.report.labels import selector_from_text
from pointsman.report.service_list import ListQuery


@pytest.mark.parametrize(
    "query",
    [
        ListQuery(),
        ListQuery("shop", selector_from_text("app=web,!legacy"), ("web", "shop/*"), ("down", "partly"), True),
    ],
)
def test_a_query_travels_as_the_parameters_of_a_url(query: ListQuery) -> None:
    assert ListQuery.from_words(query.words()) == query
