"""Label selectors, as Kubernetes reads them."""

from __future__ import annotations

import pytest
from tests import factory

from pointsman.report.labels import BadSelector, ServiceLabels, ServiceSelection, parse_selector

LABELS = {"app": "web", "tier": "front", "example.org/team": "shop", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app=cart", False),
        ("app!=cart", True),
        ("app!=web", False),
        ("missing!=web", True),
        ("app", True),
        ("!app", False),
        ("missing", False),
        ("! missing", True),
        ("app in (cart, web)", True),
        ("app in (cart)", False),
        ("app notin (cart)", True),
        ("missing notin (cart)", True),
        ("example.org/team=shop,tier=front", True),
        (" app = web , tier in (front,back) ", True),
        ("app=web,tier=back", False),
        ("empty=", True),
        ("in=web", False),
    ],
)
def test_a_selector_chooses_by_labels(selector: str, chosen: bool) -> None:
    labels = ServiceLabels([factory.service(metadata={"labels": LABELS})])
    assert ServiceSelection(selector=parse_selector(selector)).matches("default/web", labels) is chosen


@pytest.mark.parametrize(
    "selector", ["=web", "app=web=x", "app in web", "app in (a", "app web", "a,,b", "-a"]
)
def test_a_selector_that_means_nothing_is_refused(selector: str) -> None:
    with pytest.raises(BadSelector, match="write conditions such as app=web"):
        parse_selector(selector)


def test_labels_follow_their_service() -> None:
    service = factory.service()
    known = ServiceLabels()
    assert known.get("default/web") == {}
    hostile = {"app": "web\n=,\0", "b": ""}
    labelled = factory.service(metadata={"labels": hostile})
    known.upsert(labelled)
    earlier = known.copy()
    assert known.get("default/web") == hostile
    assert known.changes == 1
    known.upsert(labelled)
    assert known.changes == 1
    known.upsert(service)
    assert known.get("default/web") == {}
    known.upsert(labelled)
    known.delete("default/web")
    assert known.get("default/web") == {}
    assert earlier.get("default/web") == hostile
    assert known.changes == 4
