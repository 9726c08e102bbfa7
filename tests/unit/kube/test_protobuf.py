"""Objects in protobuf: the same structs as from JSON, and nothing but typed errors from bytes that are no objects."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fake import protobuf as server_side
from tests.harness.kube_objects import endpoint_slice, node, service, service_cidr
from tests.harness.pages import split_page

from pointsman.kube.codec import BadObject, Decoder, JsonDecoder, Unreadable
from pointsman.kube.formats import JSON, PREFER_PROTOBUF, accept_header, decode_status
from pointsman.kube.protobuf import PROTOBUF, FrameSplitter, ProtobufDecoder
from pointsman.kube.wire import BoundedCache
from pointsman.model.objects import EndpointSlice, Node, Service, ServiceCIDR

RECORDED = Path(__file__).parent / "recorded"
KINDS: dict[str, type[Any]] = {
    "services": Service,
    "endpointslices": EndpointSlice,
    "nodes": Node,
    "servicecidrs": ServiceCIDR,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_recorded_list_is_the_same_in_both_formats(name: str) -> None:
    kind = KINDS[name]
    from_json = JsonDecoder(kind).decode_page((RECORDED / f"{name}.json").read_bytes())
    from_protobuf = ProtobufDecoder(kind).decode_page((RECORDED / f"{name}.pb").read_bytes())
    assert from_protobuf.metadata == from_json.metadata
    objects, bad = split_page(from_json)
    assert split_page(from_protobuf) == (objects, bad)
    assert objects
    assert not bad


@pytest.mark.parametrize("name", KINDS)
def test_the_fake_server_encodes_what_the_real_one_sent(name: str) -> None:
    document = json.loads((RECORDED / f"{name}.json").read_bytes())
    kind = KINDS[name]
    body = server_side.Encoder().listing(
        kind.__name__, document["apiVersion"], document["metadata"], document["items"]
    )
    recorded = ProtobufDecoder(kind).decode_page((RECORDED / f"{name}.pb").read_bytes())
    encoded = ProtobufDecoder(kind).decode_page(body)
    assert encoded.metadata == recorded.metadata
    assert split_page(encoded) == split_page(recorded)


def events(decoder: Decoder[Any], stream: bytes) -> list[tuple[str, Any]]:
    frames = list(decoder.make_splitter().feed(stream))
    return [(event.type, decoder.decode_object(event.object)) for event in map(decoder.decode_event, frames)]


def test_a_recorded_watch_is_the_same_in_both_formats() -> None:
    from_json = events(JsonDecoder(EndpointSlice), (RECORDED / "endpointslices-watch.json").read_bytes())
    from_protobuf = events(
        ProtobufDecoder(EndpointSlice), (RECORDED / "endpointslices-watch.pb").read_bytes()
    )
    assert from_protobuf == from_json
    assert {type_ for type_, _ in from_json} == {"ADDED", "MODIFIED"}


words = st.text(alphabet="abcü-./ ", max_size=6)
given_words = st.text(alphabet="abc-", min_size=1, max_size=6)
stamps = st.datetimes().map(lambda moment: moment.replace(microsecond=0).isoformat() + "Z")
numbers = st.integers(min_value=-(2**31), max_value=2**31 - 1)
string_maps = st.dictionaries(words, words, min_size=1, max_size=3)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A dictionary with any of these fields and always with those whose names end with an underscore."""
    always = {name.removesuffix("_"): field for name, field in fields.items() if name.endswith("_")}
    sometimes = {name: field for name, field in fields.items() if not name.endswith("_")}
    return st.fixed_dictionaries(always, optional=sometimes)


def lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Never empty: Go does not tell an empty list from none, and protobuf cannot."""
    return st.lists(items, min_size=1, max_size=3)


metadata = some(
    name_=given_words,
    namespace=given_words,
    uid=given_words,
    resourceVersion=given_words,
    generation=numbers,
    creationTimestamp=stamps,
    deletionTimestamp=stamps,
    labels=string_maps,
    annotations=string_maps,
    finalizers=lists(words),
)
services = some(
    metadata_=metadata,
    spec=some(
        type=given_words,
        clusterIP=given_words,
        clusterIPs=lists(words),
        selector=string_maps,
        ports=lists(
            some(
                port_=numbers,
                name=words,
                protocol=given_words,
                nodePort=numbers,
                targetPort=numbers | words,
                appProtocol=words,
            )
        ),
        sessionAffinity=given_words,
        sessionAffinityConfig=some(clientIP=some(timeoutSeconds=numbers)),
        externalIPs=lists(words),
        loadBalancerSourceRanges=lists(words),
        internalTrafficPolicy=words,
        externalTrafficPolicy=given_words,
        healthCheckNodePort=numbers,
        publishNotReadyAddresses=st.booleans(),
        ipFamilies=lists(words),
        loadBalancerClass=words,
    ),
    status=some(
        loadBalancer=some(ingress=lists(some(ip=given_words, hostname=words, ipMode=words))),
        conditions=lists(some(type=words, status=words)),
    ),
)
slices = some(
    metadata_=metadata,
    addressType=given_words,
    endpoints=lists(
        some(
            addresses=lists(words),
            conditions=some(ready=st.booleans(), serving=st.booleans(), terminating=st.booleans()),
            hostname=words,
            targetRef=some(kind=words, name=words, uid=words),
            deprecatedTopology=string_maps,
            nodeName=words,
            zone=words,
            hints=some(forZones=lists(some(name=words)), forNodes=lists(some(name=words))),
        )
    ),
    ports=lists(some(name=words, protocol=words, port=numbers, appProtocol=words)),
)
nodes = some(
    metadata_=metadata,
    spec=some(
        podCIDR=words, podCIDRs=lists(words), taints=lists(some(key=words, value=words)), providerID=words
    ),
    status=some(addresses=lists(some(type=words, address=words)), phase=words),
)
service_cidrs = some(metadata_=metadata, spec=some(cidrs=lists(words)))

unknown_fields = st.lists(
    st.one_of(
        st.tuples(st.integers(400, 500), st.binary(max_size=200)).map(
            lambda found: _tag(found[0], 2) + _varint(len(found[1])) + found[1]
        ),
        st.tuples(st.integers(400, 500), st.integers(0, 2**64 - 1)).map(
            lambda found: _tag(found[0], 0) + _varint(found[1])
        ),
        st.tuples(st.integers(400, 500), st.binary(min_size=8, max_size=8)).map(
            lambda found: _tag(found[0], 1) + found[1]
        ),
        st.tuples(st.integers(400, 500), st.binary(min_size=4, max_size=4)).map(
            lambda found: _tag(found[0], 5) + found[1]
        ),
    ),
    max_size=3,
).map(b"".join)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


@given(
    st.one_of(
        st.tuples(st.just(Service), services),
        st.tuples(st.just(EndpointSlice), slices),
        st.tuples(st.just(Node), nodes),
        st.tuples(st.just(ServiceCIDR), service_cidrs),
    ),
    unknown_fields,
)
def test_any_object_is_the_same_in_both_formats(
    found: tuple[type[Any], dict[str, Any]], unknown: bytes
) -> None:
    kind, item = found
    schema = server_side.SCHEMAS[kind.__name__]
    in_protobuf = server_side.envelope(
        kind.__name__, "v1", unknown + server_side.encoded(schema, item) + unknown
    )
    from_json = JsonDecoder(kind).decode_object(json.dumps(item).encode())
    assert isinstance(from_json, kind)
    assert ProtobufDecoder(kind).decode_object(in_protobuf) == from_json


def contents(**fields: Any) -> bytes:
    return server_side.encoded(server_side.SCHEMAS["Service"], fields)


def test_what_go_writes_for_fields_without_a_value_is_what_json_leaves_out() -> None:
    spec = {"type": "", "sessionAffinity": "", "externalTrafficPolicy": "", "healthCheckNodePort": 0}
    spec["ports"] = [{"name": "", "protocol": "", "port": 80, "nodePort": 0}]
    written = contents(metadata={"name": "a", "namespace": ""}, spec=spec) + b"\x1a\x02\x0a\x00"
    left_out = {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}, "status": {"loadBalancer": {}}}
    expected = JsonDecoder(Service).decode_object(json.dumps(left_out).encode())
    assert ProtobufDecoder(Service).decode_object(server_side.envelope("Service", "v1", written)) == expected


@pytest.mark.parametrize("said", [None, False, True])
def test_a_condition_that_is_not_said_is_neither_true_nor_false(said: bool | None) -> None:
    item = endpoint_slice("a", "10.1.0.1")
    item["endpoints"][0]["conditions"] = {} if said is None else {"ready": said}
    found = ProtobufDecoder(EndpointSlice).decode_object(server_side.document(item))
    assert isinstance(found, EndpointSlice)
    assert found.endpoints is not None
    assert found.endpoints[0].conditions is not None
    assert found.endpoints[0].conditions.ready is said


OBJECTS: dict[Any, dict[str, Any]] = {
    Service: service("a"),
    EndpointSlice: endpoint_slice("a", "10.1.0.1", "10.1.0.2"),
    Node: node("n1"),
    ServiceCIDR: service_cidr("c", "10.96.0.0/12"),
}


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)
def test_half_an_object_is_a_bad_object(kind: type[Any]) -> None:
    whole = server_side.encoded(server_side.SCHEMAS[kind.__name__], OBJECTS[kind])
    decoder: ProtobufDecoder[Any] = ProtobufDecoder(kind)
    for length in range(len(whole)):
        found = decoder.decode_object(server_side.envelope(kind.__name__, "v1", whole[:length]))
        if not isinstance(found, BadObject):
            # Cut between two fields: a smaller object, as any older server might send it.
            assert found.metadata.name == OBJECTS[kind]["metadata"]["name"]


@given(st.binary(max_size=60), st.sampled_from(list(OBJECTS)))
def test_any_bytes_give_an_object_a_bad_object_or_a_typed_error(data: bytes, kind: type[Any]) -> None:
    decoder: ProtobufDecoder[Any] = ProtobufDecoder(kind)
    assert isinstance(decoder.decode_object(data), BadObject)
    assert isinstance(decoder.decode_object(server_side.envelope("X", "v1", data)), BadObject | kind)
    for read in (decoder.decode_page, decoder.decode_event, decoder.decode_bookmark):
        for body in (data, b"k8s\0" + data, server_side.envelope("X", "v1", data)):
            try:
                read(body)
            except Unreadable:
                continue
    decode_status(data)
    decode_status(b"k8s\0" + data)


@pytest.mark.parametrize(
    ("broken", "key"),
    [
        (contents(metadata={"name": "bad", "namespace": "shop"}, spec={"clusterIP": 5}), "shop/bad"),
        (contents(metadata={"name": "bad"}) + b"\x12\x01\xff", "bad"),
        (contents(metadata={"name": "bad"}) + b"\x10\x01", "bad"),
        (contents(metadata={"name": "bad"}) + b"\x15\x01\x01\x01\x01", "bad"),
        (contents(metadata={"name": "bad"}, spec={"ports": [{"name": "no-number"}]}), "bad"),
        (contents(metadata={"name": "bad", "labels": {"a": "b"}}) + b"\x0b\x0c", "(unnamed)"),
        (contents(metadata={"namespace": "shop"}), "shop/"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "(unnamed)"),
        (b"", "(unnamed)"),
    ],
)
def test_bad_message_of_a_page_is_named_and_the_others_are_kept(broken: bytes, key: str) -> None:
    def item(data: bytes) -> bytes:
        return b"\x12" + _varint(len(data)) + data

    good = [contents(**{k: v for k, v in service(name).items() if k in "metadataspec"}) for name in "ac"]
    listing = b"\x0a\x06\x12\x017\x1a\x01c" + item(good[0]) + item(broken) + item(good[1])
    page = ProtobufDecoder(Service).decode_page(server_side.envelope("ServiceList", "v1", listing))
    objects, bad = split_page(page)
    assert [found.metadata.name for found in objects] == ["a", "c"]
    assert [found.key for found in bad] == [key]
    assert (page.metadata.resource_version, page.metadata.continue_token) == ("7", "c")


def test_long_values_are_not_remembered() -> None:
    remembered = BoundedCache(bytes.decode)
    assert remembered[b"a" * 256] is remembered[b"a" * 256]
    assert remembered[b"a" * 257] is not remembered[b"a" * 257]


def test_an_error_names_the_field() -> None:
    found = ProtobufDecoder(Service).decode_object(
        server_side.envelope("Service", "v1", contents(metadata={"name": "a"}) + b"\x10\x01")
    )
    assert isinstance(found, BadObject)
    assert found.error == "spec has the wrong type"


@given(st.lists(st.binary(max_size=9), max_size=6), st.data())
def test_frames_do_not_depend_on_how_they_were_cut(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames) + b"\0\0"
    splitter = FrameSplitter()
    seen: list[bytes] = []
    while stream:
        size = data.draw(st.integers(min_value=1, max_value=len(stream)))
        chunk, stream = stream[:size], stream[size:]
        seen.extend(splitter.feed(chunk))
    assert seen == frames


def test_a_frame_longer_than_any_object_is_refused_before_it_arrives() -> None:
    with pytest.raises(Unreadable, match="longer than 1 MiB"):
        list(FrameSplitter(1 << 20).feed(struct.pack(">I", (1 << 20) + 1)))


@pytest.mark.parametrize(
    ("content_type", "accepted", "header"),
    [
        (PROTOBUF, "", PREFER_PROTOBUF),
        (JSON, "", JSON),
        ("", "", JSON),
        (PROTOBUF, JSON, JSON),
        (JSON, f"{PROTOBUF},{JSON}", PREFER_PROTOBUF),
        ("application/yaml", "", JSON),
    ],
)
def test_the_configuration_chooses_the_format(content_type: str, accepted: str, header: str) -> None:
    assert accept_header(content_type, accepted) == header
