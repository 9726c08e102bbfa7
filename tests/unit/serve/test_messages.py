"""Requests and answers as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serve.messages import Query, reply, split_target, text_response


def test_the_first_of_several_values_counts_and_all_can_be_had() -> None:
    query = Query("exclude=a&verbose&exclude=b&plus=a+b%26")
    assert query["exclude"] == "a"
    assert query.get("verbose") == ""
    assert "verbose" in query
    assert "silent" not in query
    assert query.getall("exclude") == ["a", "b"]
    assert query.getall("silent") == []
    assert dict(query) == {"exclude": "a", "verbose": "", "plus": "a b&"}
    assert len(query) == 3


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/healthz", "/healthz", {}),
        ("/a%20b/%C3%BC?x=%31", "/a b/ü", {"x": "1"}),
        ("//evil/metrics", "//evil/metrics", {}),
        ("/?next=http://x/y", "/", {"next": "http://x/y"}),
        ("http://node:10249/metrics?x=1", "/metrics", {"x": "1"}),
        ("http://node:10249", "/", {}),
        ("*", "*", {}),
    ],
)
def test_targets_become_a_path_and_a_query(target: str, path: str, query: dict[str, str]) -> None:
    found, parameters = split_target(target)
    assert (found, dict(parameters)) == (path, query)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1))
def test_no_target_is_too_strange(target: str) -> None:
    split_target(target)


def test_an_answer_says_what_it_is_whatever_else_it_says() -> None:
    answer = reply(b"{}", "application/json", 503, {"Content-Type": "text/html", "Cache-Control": "no-store"})
    assert answer.status == 503
    assert answer.headers == {
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    assert text_response("ü").body == "ü".encode()
