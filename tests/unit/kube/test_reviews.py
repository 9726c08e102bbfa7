"""Answers of the API server that are read outside of lists and watches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pointsman.errors import KubeError
from pointsman.kube.client import ApiClient
from pointsman.kube.reviews import ApiReviews, User
from pointsman.source.api import ApiSource

NESTED = b'{"status":%s}' % (b"[" * 100_000 + b"]" * 100_000)


class Answering:
    """A client whose every request gets the same body."""

    server = "https://192.0.2.1"

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def request(self, *_args: Any, **_options: Any) -> SimpleNamespace:
        return SimpleNamespace(body=self._body)


def answering(body: bytes) -> ApiClient:
    return cast("ApiClient", Answering(body))


async def test_a_review_nested_without_end_is_a_kube_error() -> None:
    reviews = ApiReviews(answering(NESTED))
    with pytest.raises(KubeError, match="nested too deeply"):
        await reviews.review_access(User("u"), "get", "/metrics")


async def test_names_of_nodes_nested_without_end_are_none() -> None:
    source = ApiSource(answering(b'{"items":[%s]}' % NESTED), node_name="n1")
    assert await source.list_node_names() == []
