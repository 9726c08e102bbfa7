"""Rows of service ports, kept up to date change by change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pointsman.backends.ledger import Ledger, Row
from pointsman.model.service import Protocol, ServicePortName

A, B, C = (ServicePortName("default", name, "http", Protocol.TCP) for name in "abc")
SERVER, ADDRESS = "servers", "addresses"
Rows = tuple[Row, ...]
History = list[tuple[ServicePortName, Rows]]


def rows(owner: ServicePortName, port: int, value: str = "x", address: str = "10.96.0.1") -> Rows:
    return Row(owner, SERVER, (address, port), value), Row(owner, ADDRESS, address)


def test_a_row_stays_while_one_service_port_wants_it() -> None:
    ledger = Ledger({A: rows(A, 80), B: rows(B, 443)})
    touched = ledger.update({A: ()})
    assert list(ledger.rows(ADDRESS)) == ["10.96.0.1"]
    assert touched[SERVER] == {("10.96.0.1", 80)}
    ledger.update({B: ()})
    assert not ledger.rows(ADDRESS)
    assert not ledger.rows(SERVER)


def test_a_change_touches_what_it_adds_and_what_it_leaves() -> None:
    ledger = Ledger({A: rows(A, 80)})
    touched = ledger.update({A: rows(A, 8080)})
    assert touched[SERVER] == {("10.96.0.1", 80), ("10.96.0.1", 8080)}
    assert list(ledger.rows(SERVER)) == [("10.96.0.1", 8080)]


def test_the_same_again_touches_nothing() -> None:
    ledger = Ledger({A: rows(A, 80)})
    assert not ledger.update({A: rows(A, 80)})
    assert not ledger.update({B: ()})


def test_the_first_service_port_owns_a_row_and_the_next_one_takes_over() -> None:
    key = ("10.96.0.1", 80)
    ledger = Ledger({A: rows(A, 80, "a"), B: rows(B, 80, "b")})
    assert ledger.rows(SERVER)[key] == Row(A, SERVER, key, "a")
    assert ledger.owners(SERVER, key) == [A, B]
    ledger.update({B: rows(B, 80, "b2")})
    assert ledger.rows(SERVER)[key].value == "a"
    touched = ledger.update({A: ()})
    assert ledger.rows(SERVER)[key] == Row(B, SERVER, key, "b2")
    assert key in touched[SERVER]
    assert ledger.owners(SERVER, key) == [B]


def test_the_owners_of_a_rejected_row_are_found() -> None:
    ledger = Ledger({A: rows(A, 80), B: rows(B, 443, address="10.96.0.2"), C: rows(C, 443)})
    assert ledger.owners(ADDRESS, "10.96.0.1") == [A, C]
    assert ledger.owners(ADDRESS, "10.96.0.2") == [B]
    assert ledger.owners(ADDRESS, "10.96.0.3") == []


changes = st.sampled_from((A, B, C)).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.just(())
        | st.builds(
            lambda port, value, last: rows(name, port, value, f"10.96.0.{last}"),
            st.sampled_from((80, 443)),
            st.sampled_from("xy"),
            st.integers(1, 3),
        ),
    )
)


@given(st.lists(changes, max_size=30))
def test_any_history_ends_like_a_fresh_start(history: History) -> None:
    ledger, last = Ledger(), dict(history)
    for name, wanted in history:
        ledger.update({name: wanted})
    fresh = Ledger(last)
    for kind in (SERVER, ADDRESS):
        assert ledger.rows(kind).keys() == fresh.rows(kind).keys()
        for key, row in ledger.rows(kind).items():
            assert row in last[row.owner]
            assert set(ledger.owners(kind, key)) == set(fresh.owners(kind, key))


@given(st.lists(changes, max_size=12), changes)
def test_everything_that_changed_was_touched(history: History, change: tuple[ServicePortName, Rows]) -> None:
    ledger = Ledger()
    for earlier in history:
        ledger.update(dict((earlier,)))
    before = {kind: dict(ledger.rows(kind)) for kind in (SERVER, ADDRESS)}
    touched = ledger.update(dict((change,)))
    for kind, held in before.items():
        after = ledger.rows(kind)
        differing = {key for key in held.keys() | after.keys() if held.get(key) != after.get(key)}
        assert differing <= touched.get(kind, set())
