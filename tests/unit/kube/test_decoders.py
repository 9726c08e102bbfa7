"""The contract of a decoder, for each format that an API server speaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.fake import protobuf as server_side
from tests.harness.kube_objects import KubeDict, endpoint_slice, service
from tests.harness.pages import split_page

from pointsman.kube.codec import Decoder, JsonDecoder, Unreadable
from pointsman.kube.protobuf import ProtobufDecoder
from pointsman.model.objects import EndpointSlice, Service

METADATA = {"resourceVersion": "7", "continue": "c"}


class Format:
    """A decoder and the encoder of its format on the server's side."""

    def __init__(
        self,
        decoder: Callable[[type[Any]], Decoder[Any]],
        page: Callable[[str, Sequence[KubeDict]], bytes],
        event: Callable[[str, KubeDict], bytes],
    ) -> None:
        self.decoder, self.page, self.event = decoder, page, event


def json_page(kind: str, items: Sequence[KubeDict]) -> bytes:
    return json.dumps({"kind": f"{kind}List", "metadata": METADATA, "items": items}).encode()


def json_event(type_: str, item: KubeDict) -> bytes:
    return json.dumps({"type": type_, "object": item}).encode()


def protobuf_page(kind: str, items: Sequence[KubeDict]) -> bytes:
    return server_side.Encoder().listing(kind, "v1", METADATA, items)


def protobuf_event(type_: str, item: KubeDict) -> bytes:
    return server_side.Encoder().frame({"type": type_, "object": item})[4:]


FORMATS = {
    "json": Format(JsonDecoder, json_page, json_event),
    "compact-json": Format(
        JsonDecoder, json_page, lambda *event: json_event(*event).replace(b": ", b":").replace(b", ", b",")
    ),
    "protobuf": Format(ProtobufDecoder, protobuf_page, protobuf_event),
}


@pytest.fixture(params=FORMATS)
def format_(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


def test_page_of_good_objects(format_: Format) -> None:
    page = format_.decoder(Service).decode_page(format_.page("Service", [service("a"), service("b")]))
    objects, bad = split_page(page)
    assert [item.metadata.name for item in objects] == ["a", "b"]
    assert bad == []
    assert (page.metadata.resource_version, page.metadata.continue_token) == ("7", "c")


def test_a_list_of_another_kind_is_no_list_of_ours(format_: Format) -> None:
    """Its objects may look like ours, and every object that it does not hold would be deleted."""
    with pytest.raises(Unreadable, match="its kind is 'ServiceList', not EndpointSliceList"):
        format_.decoder(EndpointSlice).decode_page(format_.page("Service", [service("a")]))


@pytest.mark.parametrize("type_", ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"])
def test_an_event_about_another_kind_is_no_event_of_ours(format_: Format, type_: str) -> None:
    decoder = format_.decoder(EndpointSlice)
    assert decoder.decode_event(format_.event(type_, endpoint_slice("a"))).type == type_
    for _ in range(2):
        with pytest.raises(Unreadable, match="its kind is 'Service', not EndpointSlice"):
            decoder.decode_event(format_.event(type_, service("a")))


@pytest.mark.parametrize(("name", "entries"), [("json", 20_001), ("protobuf", 20_001), ("protobuf", 500_000)])
def test_an_object_with_a_list_beyond_all_limits_is_left_out_by_name(name: str, entries: int) -> None:
    format_ = FORMATS[name]
    long = {"metadata": {"name": "bad", "namespace": "shop"}, "endpoints": [{}] * entries}
    body = format_.page("EndpointSlice", [endpoint_slice("a", "10.1.0.1"), long])
    objects, bad = split_page(format_.decoder(EndpointSlice).decode_page(body))
    assert [item.metadata.name for item in objects] == ["a"]
    assert [found.key for found in bad] == ["shop/bad"]
    expected = {"json": "length <= 20000", "protobuf": "a list has more than 20000 entries"}
    assert expected[name] in bad[0].error
