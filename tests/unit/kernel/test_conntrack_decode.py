"""Flows are decoded right in whatever order the kernel writes their attributes, and garbage harms nothing."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.kernel import attributes as nla
from pointsman.kernel.tracked_flows import Flow, FlowDecoder, FlowQuery
from pointsman.model.addresses import Family

V4 = [bytes((10, 0, 0, n)) for n in range(4)]
V6 = [b"\xfd" + bytes(14) + bytes((n,)) for n in range(4)]
ID = b"\x01\x02\x03\x04"


def everything(*_: object) -> bool:
    return True


@pytest.fixture(params=list(Family), ids=lambda family: family.value)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
def decoder(family: Family) -> FlowDecoder:
    return FlowDecoder(family)


def expected(family: Family) -> Flow:
    a = V4 if family is Family.IPV4 else V6
    return Flow(17, a[0], 1000, a[1], 53, a[2], 5353, a[3], 1001, ID)


def side(flow: Flow, kind: int, *, reverse: bool, extra: bytes = b"") -> bytes:
    if kind == 1:
        source, source_port, to, port = flow[1:5]
    else:
        source, source_port, to, port = flow[5:9]
    first = 1 if len(source) == 4 else 3
    addresses = [nla.pack_attribute(first, source), nla.pack_attribute(first + 1, to)]
    ports = [nla.pack_u8(1, flow.protocol), nla.pack_u16be(2, source_port), nla.pack_u16be(3, port)]
    step = -1 if reverse else 1
    parts = [nla.pack_nested(1, *addresses[::step]), nla.pack_nested(2, *ports[::step])][::step]
    return nla.pack_nested(kind, *parts, extra)


def message(flow: Flow, *, reverse: bool = False, tail: bytes = b"", zone: bytes = b"") -> bytes:
    family = socket.AF_INET if len(flow.source) == 4 else socket.AF_INET6
    parts = [
        side(flow, 1, reverse=reverse, extra=zone),
        side(flow, 2, reverse=reverse),
        nla.pack_u32be(3, 8),
        nla.pack_attribute(12, flow.id),
        tail,
    ]
    return bytes((family, 0, 0, 0)) + b"".join(parts[:: -1 if reverse else 1])


def test_the_kernels_own_order_takes_the_short_way(family: Family, decoder: FlowDecoder) -> None:
    flow = expected(family)
    assert decoder.read_layout(message(flow)) == decoder.read_attributes(message(flow))
    assert decoder.read_layout(message(flow)) is not None
    assert decoder.read_layout(message(flow, reverse=True)) is None
    assert decoder.decode(message(flow), FlowQuery(17), everything) == flow


def test_any_other_order_gives_the_same_flow(family: Family, decoder: FlowDecoder) -> None:
    flow = expected(family)
    assert decoder.decode(message(flow, reverse=True), FlowQuery(17), everything) == flow


def test_flows_of_other_zones_are_left_out_in_either_place(family: Family, decoder: FlowDecoder) -> None:
    flow = expected(family)
    assert decoder.decode(message(flow, tail=nla.pack_u16be(18, 5)), FlowQuery(17), everything) is None
    assert decoder.decode(message(flow, zone=nla.pack_u16be(3, 5)), FlowQuery(17), everything) is None
    assert decoder.decode(message(flow, zone=nla.pack_u16be(3, 0)), FlowQuery(17), everything) == flow


def test_what_was_not_asked_for_is_left_out(family: Family, decoder: FlowDecoder) -> None:
    flow = expected(family)
    for query in (FlowQuery(6), FlowQuery(17, flow.source, 53), FlowQuery(17, flow.destination, 54)):
        assert decoder.decode(message(flow), query, everything) is None
    assert decoder.decode(message(flow), FlowQuery(17), lambda *_: False) is None
    asked: list[tuple[object, ...]] = []

    def noted(*parts: object) -> bool:
        asked.append(parts)
        return False

    decoder.decode(message(flow), FlowQuery(17), noted)
    assert asked == [(flow.destination, 53, flow.reply_source, 5353)]


@pytest.mark.parametrize(("status", "replied"), [(8, False), (8 | 2, True), (8 | 1 | 32, False)])
def test_a_flow_on_which_a_packet_came_back_is_told_apart(
    family: Family, decoder: FlowDecoder, status: int, replied: bool
) -> None:
    flow = expected(family)._replace(replied=replied)
    payload = message(flow, tail=nla.pack_u32be(3, status))
    assert decoder.decode(payload, FlowQuery(17), everything) == flow
    unreplied = decoder.decode(payload, FlowQuery(17, unreplied=True), everything)
    assert unreplied == (None if replied else flow)


def test_a_message_cut_short_lacks_its_id_or_status_and_without_a_status_counts_as_replied(
    family: Family,
    decoder: FlowDecoder,
) -> None:
    flow = expected(family)
    whole = message(flow)
    for cut in range(len(whole)):
        found = decoder.decode(whole[:cut], FlowQuery(17), everything)
        assert found in (None, flow._replace(id=b""), flow._replace(id=b"", replied=True))
        if cut < len(whole) - len(nla.pack_u32be(3, 8)) - len(nla.pack_attribute(12, ID)):
            assert decoder.decode(whole[:cut], FlowQuery(17, unreplied=True), everything) is None


@given(data=st.binary(max_size=200), cut=st.integers(0, 120), reverse=st.booleans())
def test_garbage_is_never_more_than_left_out(data: bytes, cut: int, reverse: bool) -> None:
    for family in Family:
        decoder, whole = FlowDecoder(family), message(expected(family), reverse=reverse)
        for payload in (data, whole[:cut], whole[:cut] + data, whole[:cut] + data + whole[cut:]):
            flow = decoder.decode(payload, FlowQuery(17), everything)
            assert flow is None or flow.protocol == 17
