"""The steps from what the kernel holds to what services want: they arrive, they are in a safe order, they end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.factory import context, packed

from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.compile import ADDRESS, BLOCKED, SERVER, ServerRow
from pointsman.backends.ipvs.rules import build_desired_rules
from pointsman.backends.ipvs.steps import (
    TCP,
    AddEntries,
    AddReals,
    AddServers,
    AlterServers,
    Bind,
    DeleteEntries,
    Draining,
    DrainReals,
    KernelState,
    NetlinkStep,
    RemoveReals,
    RemoveServers,
    Unbind,
    WeighReals,
    WriteRules,
    list_all_keys,
    plan_steps,
)
from pointsman.backends.ledger import Keys, Ledger, Row
from pointsman.kernel.ipvs_objects import RealKey, RealOf, RealServer, SetEntry, VirtualKey, VirtualServer
from pointsman.model.service import Protocol, ServicePortName

CONTEXT = context()
SET_NAMES = [header.name for header in sets.build_headers(CONTEXT.family)]
NAMES = [ServicePortName("default", name, "http", Protocol.TCP) for name in "abcd"]
ADDRESSES = [packed(f"10.96.0.{last}") for last in (1, 2, 3)]
REALS = [RealKey(packed(f"10.244.0.{last}"), 8080) for last in (1, 2, 3)]
EXCLUDED = packed("192.0.2.1")

keys = st.builds(VirtualKey, st.sampled_from((6, 17)), st.sampled_from(ADDRESSES), st.sampled_from((80, 443)))
servers = st.builds(VirtualServer, keys, st.sampled_from(("rr", "lc")))
members = st.tuples(
    st.sampled_from(SET_NAMES[:4]), st.builds(SetEntry, st.sampled_from(ADDRESSES), st.just(6), st.just(80))
)
Rows = tuple[Row, ...]


def rows_of(
    owner: ServicePortName,
    served: list[tuple[VirtualServer, dict[RealKey, int]]],
    entries: list[tuple[str, SetEntry]],
    blocked: list[VirtualKey],
) -> Rows:
    return (
        *(Row(owner, SERVER, server.key, ServerRow(server, weights)) for server, weights in served),
        *(Row(owner, name, entry) for name, entry in entries),
        *(Row(owner, ADDRESS, address) for address in {server.key.address for server, _ in served}),
        *(Row(owner, BLOCKED, key) for key in blocked),
    )


served_lists = st.lists(
    st.tuples(servers, st.dictionaries(st.sampled_from(REALS), st.sampled_from((1, 1, 7)))),
    max_size=3,
    unique_by=lambda served: served[0].key,
)
entry_lists = st.lists(members, max_size=4, unique=True)
blocked_lists = st.lists(keys, max_size=1)


@st.composite
def requests(draw: st.DrawFn, gone: bool = False) -> dict[ServicePortName, Rows]:
    names = draw(st.sets(st.sampled_from(NAMES)))
    return {
        name: ()
        if gone and draw(st.booleans())
        else rows_of(name, draw(served_lists), draw(entry_lists), draw(blocked_lists))
        for name in names
    }


busy_reals = st.sets(st.builds(RealOf, keys, st.sampled_from(REALS)))


@st.composite
def kernels(draw: st.DrawFn) -> KernelState:
    """Whatever an earlier process, iptables mode or another program may have left."""
    known = KernelState(SET_NAMES)
    for server in draw(st.lists(servers, max_size=6)):
        known.servers[server.key] = server
        known.weights[server.key] = draw(st.dictionaries(st.sampled_from(REALS), st.sampled_from((0, 1, 7))))
    if draw(st.booleans()):
        excluded = VirtualServer(VirtualKey(6, EXCLUDED, 80), "rr")
        known.servers[excluded.key] = excluded
    for name, entry in draw(st.lists(members, max_size=6)):
        known.keys[name].add(entry)
    known.keys[ADDRESS] = draw(st.sets(st.sampled_from(ADDRESSES)))
    known.iptables_mode_serves = draw(st.booleans())
    return known


class Simulation:
    """Runs steps against the memory alone; `busy` real servers have connections that never end."""

    def __init__(self, known: KernelState, busy: Collection[RealOf] = ()) -> None:
        self.known = known
        self.draining = Draining(100)
        self._busy = busy

    def steps(self, desired: Ledger, touched: Keys | None = None) -> list[Any]:
        touched = touched if touched is not None else list_all_keys(desired, self.known)
        rules = build_desired_rules(desired, CONTEXT)
        return list(plan_steps(desired, self.known, touched, rules, lambda key: key.address == EXCLUDED))

    def expanded(self, step: Any) -> list[Any]:
        if not isinstance(step, DrainReals):
            return [step]
        present = {
            item: RealServer(item.real, self.known.weights[item.server][item.real], int(item in self._busy))
            for item in step.items
        }
        return [part for part in self.draining.plan_steps(step.items, present, now=0) if part.items]

    def take(self, step: Any) -> None:
        if isinstance(step, WriteRules):
            self.known.rules, self.known.iptables_mode_serves = step.rules, False
        else:
            assert isinstance(step, NetlinkStep)
            step.apply_to(self.known)

    def sync(self, desired: Ledger, touched: Keys | None = None) -> None:
        for step in self.steps(desired, touched):
            for part in self.expanded(step):
                self.take(part)

    def assert_reached(self, desired: Ledger) -> None:
        known = self.known
        ours = {key: server for key, server in known.servers.items() if key.address != EXCLUDED}
        assert ours == {key: row.value.server for key, row in desired.rows(SERVER).items()}
        for key, row in desired.rows(SERVER).items():
            reals = row.value.weights
            weights = known.weights.get(key, {})
            assert {real for real, weight in weights.items() if weight} == set(reals)
            assert all(weights[real] == weight for real, weight in reals.items())
            assert all(RealOf(key, real) in self.draining for real, weight in weights.items() if not weight)
        assert known.keys == {kind: set(desired.rows(kind)) for kind in known.keys}
        assert known.rules == build_desired_rules(desired, CONTEXT)


@given(kernels(), requests(), busy_reals)
def test_from_any_state_the_steps_lead_to_what_services_want(
    known: KernelState, wanted: dict[ServicePortName, Rows], busy: set[RealOf]
) -> None:
    simulation, desired = Simulation(known, busy), Ledger(wanted)
    foreign = {key for key in known.servers if key.address == EXCLUDED}
    simulation.sync(desired)
    simulation.assert_reached(desired)
    assert foreign <= known.servers.keys()


@given(kernels(), requests(), busy_reals)
def test_the_same_again_asks_only_for_those_that_still_drain(
    known: KernelState, wanted: dict[ServicePortName, Rows], busy: set[RealOf]
) -> None:
    simulation, desired = Simulation(known, busy), Ledger(wanted)
    simulation.sync(desired)
    asked = {item for step in simulation.steps(desired) for item in step.items}
    assert asked == set(simulation.draining.list_reals())
    assert [part for step in simulation.steps(desired) for part in simulation.expanded(step)] == []


@given(requests(), st.lists(requests(gone=True), max_size=6), busy_reals)
def test_small_changes_arrive_where_a_full_sync_does(
    start: dict[ServicePortName, Rows],
    history: list[dict[ServicePortName, Rows]],
    busy: set[RealOf],
) -> None:
    simulation, desired = Simulation(KernelState(SET_NAMES), busy), Ledger(start)
    simulation.sync(desired)
    for changes in history:
        simulation.sync(desired, desired.update(changes))
        simulation.draining.retain(simulation.known.weights)
        simulation.assert_reached(desired)


@given(kernels(), requests(), busy_reals)
def test_nothing_is_used_before_it_exists_or_taken_away_before_its_replacement_is_there(
    known: KernelState, wanted: dict[ServicePortName, Rows], busy: set[RealOf]
) -> None:
    simulation, desired = Simulation(known, busy), Ledger(wanted)
    rules_last = known.iptables_mode_serves

    def entries_are_there() -> bool:
        return all(known.keys[name] >= desired.rows(name).keys() for name in SET_NAMES)

    def servers_are_there() -> bool:
        return all(
            known.servers.get(key) == row.value.server
            and known.weights.get(key, {}).items() >= row.value.weights.items()
            for key, row in desired.rows(SERVER).items()
        )

    def addresses_are_there() -> bool:
        return known.keys[ADDRESS] >= desired.rows(ADDRESS).keys()

    def everything_is_there() -> bool:
        rules = known.rules == build_desired_rules(desired, CONTEXT)
        return entries_are_there() and servers_are_there() and addresses_are_there() and rules

    for step in simulation.steps(desired):
        for part in simulation.expanded(step):
            match part:
                case AddServers() | AlterServers():
                    assert entries_are_there()
                    assert rules_last or known.rules is not None
                    assert all((s.key in known.servers) is isinstance(part, AlterServers) for s in part.items)
                case WeighReals(weight=0) | RemoveReals() | RemoveServers():
                    assert everything_is_there()
                case AddReals() | WeighReals():
                    joins = not isinstance(part, WeighReals)
                    for server, real in part.items:
                        assert server in known.servers
                        assert (real not in known.weights.get(server, {})) is joins
                case Bind():
                    assert servers_are_there()
                case WriteRules():
                    assert entries_are_there()
                    assert not rules_last or (servers_are_there() and addresses_are_there())
                case Unbind():
                    assert everything_is_there()
                    assert not any(key.address in part.items for key in known.servers)
                case DeleteEntries():
                    assert everything_is_there()
                    assert known.keys[ADDRESS] == desired.rows(ADDRESS).keys()
                case AddEntries():
                    assert not known.keys[part.kind] & set(part.items)
            simulation.take(part)


@given(kernels(), requests(), busy_reals)
def test_a_tcp_endpoint_with_connections_is_never_cut_off(
    known: KernelState, wanted: dict[ServicePortName, Rows], busy: set[RealOf]
) -> None:
    simulation, desired = Simulation(known, busy), Ledger(wanted)
    for step in simulation.steps(desired):
        for part in simulation.expanded(step):
            if isinstance(part, RemoveReals):
                assert not [item for item in part.items if item in busy and item.server.protocol == TCP]
            simulation.take(part)


def test_what_was_refused_is_not_remembered_and_asked_for_again() -> None:
    known = KernelState(SET_NAMES)
    server = VirtualServer(VirtualKey(6, ADDRESSES[0], 80), "rr")
    desired = Ledger({NAMES[0]: rows_of(NAMES[0], [(server, {REALS[0]: 1})], [], [])})
    simulation = Simulation(known)
    refused = {server, RealOf(server.key, REALS[0]), ADDRESSES[0]}
    first = [step for step in simulation.steps(desired) if isinstance(step, NetlinkStep)]
    for step in first:
        step.apply_to(known, refused)
    assert [step for step in simulation.steps(desired) if isinstance(step, NetlinkStep)] == first
