"""Label selectors, as Kubernetes reads them."""

from __future__ import annotations

import pytest
from tests import factory

from pointsman.report.labels import BadSelector, ServiceLabels, selected, selector_from_text, selector_text

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
    assert selected(LABELS, selector_from_text(selector)) is chosen


@pytest.mark.parametrize(
    "selector", ["", "app", "!app", "app=", "app=web,tier!=test", "a in (y, x),b notin (z)"]
)
def test_a_selector_can_be_written_out_and_read_again(selector: str) -> None:
    read = selector_from_text(selector)
    assert selector_from_text(selector_text(read)) == read


@pytest.mark.parametrize(
    "selector", ["=web", "app=web=x", "app in web", "app in (a", "app web", "a,,b", "-a"]
)
def test_a_selector_that_means_nothing_is_refused(selector: str) -> None:
    with pytest.raises(BadSelector, match="write conditions such as app=web"):
        selector_from_text(selector)


def test_labels_follow_their_service() -> None:
    service = factory.service()
    known = ServiceLabels()
    assert known.of("default/web") == {}
    hostile = {"app": "web\n=,\0", "b": ""}
    labelled = factory.service(metadata={"labels": hostile})
    known.upserted(labelled)
    earlier = known.copy()
    assert known.of("default/web") == hostile
    assert known.changes == 1
    known.upserted(labelled)
    assert known.changes == 1
    known.upserted(service)
    assert known.of("default/web") == {}
    known.upserted(labelled)
    known.deleted("default/web")
    assert known.of("default/web") == {}
    assert earlier.of("default/web") == hostile
    assert known.changes == 4
