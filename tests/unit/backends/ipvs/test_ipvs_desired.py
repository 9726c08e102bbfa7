"""The sum of fragments, kept up to date change by change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.factory import packed

from pointsman.backends.ipvs.desired import Desired
from pointsman.backends.ipvs.fragment import Fragment
from pointsman.kernel.ipset_objects import SetEntry
from pointsman.kernel.ipvs_objects import RealKey, VirtualKey, VirtualServer
from pointsman.model.service import Protocol, ServicePortName

A, B, C = (ServicePortName("default", name, "http", Protocol.TCP) for name in "abc")
ONE = packed("10.96.0.1")
REAL = RealKey(packed("10.244.0.1"), 8080)
OTHER = RealKey(packed("10.244.0.2"), 8080)
History = list[tuple[ServicePortName, Fragment | None]]


def fragment(port: int, *reals: RealKey, address: bytes = ONE) -> Fragment:
    server = VirtualServer(VirtualKey(6, address, port), "rr")
    entries = (("KUBE-CLUSTER-IP", SetEntry(address, 6, port)), ("KUBE-IPVS-IPS", SetEntry(address)))
    return Fragment(
        ((server, dict.fromkeys(reals, 1)),), entries, (address,), (server.key,) if port == 81 else ()
    )


def test_an_address_stays_while_one_port_needs_it() -> None:
    desired = Desired({A: fragment(80, REAL), B: fragment(443, REAL)})
    touched = desired.update({A: None})
    assert set(desired.addresses) == {ONE}
    assert ("KUBE-IPVS-IPS", SetEntry(ONE)) in desired.entries
    assert touched.servers == {VirtualKey(6, ONE, 80)}
    desired.update({B: None})
    assert not desired.addresses
    assert not desired.entries
    assert not +desired.set_sizes


def test_a_change_touches_what_it_adds_and_what_it_leaves() -> None:
    desired = Desired({A: fragment(80, REAL)})
    touched = desired.update({A: fragment(8080, REAL)})
    assert touched.servers == {VirtualKey(6, ONE, 80), VirtualKey(6, ONE, 8080)}
    assert list(desired.servers) == [VirtualKey(6, ONE, 8080)]


def test_the_same_again_touches_nothing() -> None:
    desired = Desired({A: fragment(80, REAL)})
    touched = desired.update({A: fragment(80, REAL)})
    assert not touched.servers | touched.entries | touched.addresses


def test_the_first_claimant_of_a_server_keeps_it_and_the_next_inherits() -> None:
    key = VirtualKey(6, ONE, 80)
    desired = Desired({A: fragment(80, REAL), B: fragment(80, OTHER)})
    assert (desired.owners[key], desired.servers[key][1]) == (A, {REAL: 1})
    touched = desired.update({A: None})
    assert (desired.owners[key], desired.servers[key][1]) == (B, {OTHER: 1})
    assert key in touched.servers


def test_the_services_behind_a_refused_entry_are_found() -> None:
    desired = Desired({A: fragment(80, REAL), B: fragment(443, REAL, address=packed("10.96.0.2"))})
    entry, address = ("KUBE-CLUSTER-IP", SetEntry(ONE, 6, 80)), packed("10.96.0.2")
    assert desired.owners_of([entry, address]) == {entry: [A], address: [B]}


fragments = st.one_of(
    st.none(),
    st.builds(
        lambda port, reals, last: fragment(port, *reals, address=ONE[:3] + bytes((last,))),
        st.sampled_from((80, 81, 443)),
        st.lists(st.sampled_from((REAL, OTHER)), unique=True),
        st.integers(1, 3),
    ),
)


@given(st.lists(st.tuples(st.sampled_from((A, B, C)), fragments), max_size=30))
def test_any_history_ends_like_a_fresh_start(history: History) -> None:
    desired = Desired()
    for name, wanted in history:
        desired.update({name: wanted})
    fresh = Desired(desired.fragments)
    assert desired.entries == fresh.entries
    assert desired.addresses == fresh.addresses
    assert desired.hidden == fresh.hidden
    assert +desired.set_sizes == +fresh.set_sizes
    assert desired.servers.keys() == fresh.servers.keys()
    for key, owner in desired.owners.items():
        assert desired.servers[key] in desired.fragments[owner].servers


@given(
    st.lists(st.tuples(st.sampled_from((A, B, C)), fragments), max_size=12),
    st.sampled_from((A, B, C)),
    fragments,
)
def test_everything_that_changed_was_touched(
    history: History, name: ServicePortName, wanted: Fragment | None
) -> None:
    desired = Desired()
    for earlier, fragment_before in history:
        desired.update({earlier: fragment_before})
    before = dict(desired.servers), set(desired.entries), set(desired.addresses)
    touched = desired.update({name: wanted})
    changed = {
        k for k in before[0].keys() | desired.servers.keys() if before[0].get(k) != desired.servers.get(k)
    }
    assert changed <= touched.servers
    assert before[1] ^ set(desired.entries) <= touched.entries
    assert before[2] ^ set(desired.addresses) <= touched.addresses
