"""JSON: pages, lines and events as bytes. What every format must do: test_decoders."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.kube_objects import endpoint_slice, service
from tests.harness.pages import split_page

from pointsman.kube.codec import BadObject, JsonDecoder, LineSplitter, Unreadable
from pointsman.model.objects import EndpointSlice, Service


@given(st.lists(st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_do_not_depend_on_how_they_were_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"unfinished"
    splitter = LineSplitter()
    seen: list[bytes] = []
    while stream:
        size = data.draw(st.integers(min_value=1, max_value=len(stream)))
        chunk, stream = stream[:size], stream[size:]
        seen.extend(splitter.feed(chunk))
    assert seen == [line for line in lines if line.strip()]


def page(*items: object) -> bytes:
    return json.dumps(
        {"kind": "ServiceList", "metadata": {"resourceVersion": "7", "continue": "c"}, "items": items}
    ).encode()


@pytest.mark.parametrize(
    ("broken", "key"),
    [
        (service("bad", clusterIP=5), "default/bad"),
        ({"metadata": {"name": "bad"}, "spec": []}, "bad"),
        ({"metadata": {"namespace": "shop"}, "spec": 5}, "shop/"),
        ({"metadata": 5}, "(unnamed)"),
        ({}, "(unnamed)"),
        (17, "(unnamed)"),
        (None, "(unnamed)"),
    ],
)
def test_bad_object_of_a_page_is_named_and_the_others_are_kept(broken: object, key: str) -> None:
    decoded = JsonDecoder(Service).decode_page(page(service("a"), broken, service("b")))
    objects, bad = split_page(decoded)
    assert [item.metadata.name for item in objects] == ["a", "b"]
    assert [found.key for found in bad] == [key]
    assert decoded.metadata.resource_version == "7"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"items":5}', b'{"metadata":{"resourceVersion":1}}'])
def test_body_that_is_no_list_raises(body: bytes) -> None:
    with pytest.raises(Unreadable):
        JsonDecoder(Service).decode_page(body)


def test_the_kind_may_be_left_out() -> None:
    assert list(JsonDecoder(Service).decode_page(b'{"metadata":{"resourceVersion":"1"}}').items) == []
    assert JsonDecoder(Service).decode_event(b'{"type":"ADDED","object":{"metadata":{}}}').type == "ADDED"


def test_empty_lists_come_as_null_too() -> None:
    assert (
        list(JsonDecoder(Service).decode_page(b'{"metadata":{"resourceVersion":"1"},"items":null}').items)
        == []
    )


def test_object_without_a_name_is_bad() -> None:
    assert isinstance(JsonDecoder(Service).decode_object(b'{"metadata":{}}'), BadObject)


def test_unknown_fields_are_skipped() -> None:
    document = endpoint_slice("a", "10.1.0.1") | {"future": {"deep": [1, {"x": None}]}}
    result = JsonDecoder(EndpointSlice).decode_object(json.dumps(document).encode())
    assert isinstance(result, EndpointSlice)


def test_object_that_is_not_unicode_is_bad_and_the_others_are_kept() -> None:
    broken = b'{"metadata":{"name":"bad","namespace":"default","labels":{"\xff":"x"}}}'
    body = b'{"metadata":{"resourceVersion":"7"},"items":[%s,%s]}' % (
        json.dumps(service("a")).encode(),
        broken,
    )
    objects, bad = split_page(JsonDecoder(Service).decode_page(body))
    assert [item.metadata.name for item in objects] == ["a"]
    assert [found.key for found in bad] == ["default/bad"]
    alone = JsonDecoder(Service).decode_object(broken)
    assert isinstance(alone, BadObject)


def test_event_that_is_not_unicode_is_no_event() -> None:
    with pytest.raises(Unreadable):
        JsonDecoder(Service).decode_event(b'{"type":"\xff","object":{}}')


def test_a_large_list_of_small_honest_objects_is_taken_in_one_piece() -> None:
    items = [service(f"s{number}", "10.96.0.1") for number in range(50_000)]
    body = json.dumps({"metadata": {}, "items": items}, separators=(",", ":")).encode()
    objects, _ = split_page(JsonDecoder(Service).decode_page(body))
    assert len(objects) == 50_000
