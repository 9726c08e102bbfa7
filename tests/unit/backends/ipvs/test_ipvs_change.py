"""The steps from what the kernel holds to what services want: they arrive, they are in a safe order, they end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.factory import context, packed

from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.batch import (
    AddEntries,
    AddReals,
    AddServers,
    AlterServers,
    Bind,
    DeleteEntries,
    NetlinkStep,
    RemoveReals,
    RemoveServers,
    RetireReals,
    Unbind,
    WeighReals,
    WriteRules,
)
from pointsman.backends.ipvs.change import everything, steps_towards
from pointsman.backends.ipvs.desired import Desired, Touched
from pointsman.backends.ipvs.drain import TCP, Draining
from pointsman.backends.ipvs.fragment import Fragment
from pointsman.backends.ipvs.known import Known
from pointsman.kernel.ipset_objects import SetEntry
from pointsman.kernel.ipvs_objects import RealKey, RealOf, RealServer, VirtualKey, VirtualServer
from pointsman.model.service import Protocol, ServicePortName

CONTEXT = context()
SET_NAMES = [header.name for header in sets.headers(CONTEXT.family)]
NAMES = [ServicePortName("default", name, "http", Protocol.TCP) for name in "abcd"]
ADDRESSES = [packed(f"10.96.0.{last}") for last in (1, 2, 3)]
REALS = [RealKey(packed(f"10.244.0.{last}"), 8080) for last in (1, 2, 3)]
EXCLUDED = packed("192.0.2.1")

keys = st.builds(VirtualKey, st.sampled_from((6, 17)), st.sampled_from(ADDRESSES), st.sampled_from((80, 443)))
servers = st.builds(VirtualServer, keys, st.sampled_from(("rr", "lc")))
members = st.tuples(
    st.sampled_from(SET_NAMES[:4]), st.builds(SetEntry, st.sampled_from(ADDRESSES), st.just(6), st.just(80))
)
fragments = st.builds(
    lambda served, entries, hidden: Fragment(
        tuple(served), tuple(entries), tuple({server.key.address for server, _ in served}), tuple(hidden)
    ),
    st.lists(
        st.tuples(servers, st.dictionaries(st.sampled_from(REALS), st.sampled_from((1, 1, 7)))),
        max_size=3,
        unique_by=lambda served: served[0].key,
    ),
    st.lists(members, max_size=4, unique=True),
    st.lists(keys, max_size=1),
)
wishes = st.dictionaries(st.sampled_from(NAMES), fragments)
busy_reals = st.sets(st.builds(RealOf, keys, st.sampled_from(REALS)))


@st.composite
def kernels(draw: st.DrawFn) -> Known:
    """Whatever an earlier process, iptables mode or somebody else may have left."""
    known = Known(SET_NAMES)
    for server in draw(st.lists(servers, max_size=6)):
        known.servers[server.key] = server
        known.weights[server.key] = draw(st.dictionaries(st.sampled_from(REALS), st.sampled_from((0, 1, 7))))
    if draw(st.booleans()):
        excluded = VirtualServer(VirtualKey(6, EXCLUDED, 80), "rr")
        known.servers[excluded.key] = excluded
    for name, entry in draw(st.lists(members, max_size=6)):
        known.entries[name].add(entry)
    known.addresses = draw(st.sets(st.sampled_from(ADDRESSES)))
    known.iptables_mode_serves = draw(st.booleans())
    return known


class Simulation:
    """Runs steps against the memory alone; `busy` real servers have connections that never end."""

    def __init__(self, known: Known, busy: Collection[RealOf] = ()) -> None:
        self.known = known
        self.draining = Draining(100)
        self._busy = busy

    def steps(self, desired: Desired, touched: Touched | None = None) -> list[Any]:
        touched = touched or everything(desired, self.known)
        rules = desired.rules(CONTEXT)
        return list(steps_towards(desired, self.known, touched, rules, lambda key: key.address == EXCLUDED))

    def expanded(self, step: Any) -> list[Any]:
        if not isinstance(step, RetireReals):
            return [step]
        present = {
            item: RealServer(item.real, self.known.weights[item.server][item.real], int(item in self._busy))
            for item in step.items
        }
        return [part for part in self.draining.steps(step.items, present, now=0) if part.items]

    def take(self, step: Any) -> None:
        if isinstance(step, WriteRules):
            self.known.rules, self.known.iptables_mode_serves = step.rules, False
        else:
            assert isinstance(step, NetlinkStep)
            step.adopt(self.known)

    def sync(self, desired: Desired, touched: Touched | None = None) -> None:
        for step in self.steps(desired, touched):
            for part in self.expanded(step):
                self.take(part)

    def assert_reached(self, desired: Desired) -> None:
        known = self.known
        ours = {key: server for key, server in known.servers.items() if key.address != EXCLUDED}
        assert ours == {key: server for key, (server, _) in desired.servers.items()}
        for key, (_, reals) in desired.servers.items():
            weights = known.weights.get(key, {})
            assert {real for real, weight in weights.items() if weight} == set(reals)
            assert all(weights[real] == weight for real, weight in reals.items())
            assert all(RealOf(key, real) in self.draining for real, weight in weights.items() if not weight)
        assert {(n, e) for n, entries in known.entries.items() for e in entries} == set(desired.entries)
        assert known.addresses == set(desired.addresses)
        assert known.rules == desired.rules(CONTEXT)


@given(kernels(), wishes, busy_reals)
def test_from_any_state_the_steps_lead_to_what_services_want(
    known: Known, wanted: dict[ServicePortName, Fragment], busy: set[RealOf]
) -> None:
    simulation, desired = Simulation(known, busy), Desired(wanted)
    foreign = {key for key in known.servers if key.address == EXCLUDED}
    simulation.sync(desired)
    simulation.assert_reached(desired)
    assert foreign <= known.servers.keys()


@given(kernels(), wishes, busy_reals)
def test_the_same_again_asks_only_for_those_that_still_drain(
    known: Known, wanted: dict[ServicePortName, Fragment], busy: set[RealOf]
) -> None:
    simulation, desired = Simulation(known, busy), Desired(wanted)
    simulation.sync(desired)
    asked = {item for step in simulation.steps(desired) for item in step.items}
    assert asked == set(simulation.draining.reals())
    assert [part for step in simulation.steps(desired) for part in simulation.expanded(step)] == []


@given(
    wishes, st.lists(st.dictionaries(st.sampled_from(NAMES), st.none() | fragments), max_size=6), busy_reals
)
def test_small_changes_arrive_where_a_full_sync_does(
    start: dict[ServicePortName, Fragment],
    history: list[dict[ServicePortName, Fragment | None]],
    busy: set[RealOf],
) -> None:
    simulation, desired = Simulation(Known(SET_NAMES), busy), Desired(start)
    simulation.sync(desired)
    for changes in history:
        simulation.sync(desired, desired.update(changes))
        simulation.draining.retain(simulation.known.weights)
        simulation.assert_reached(desired)


@given(kernels(), wishes, busy_reals)
def test_nothing_is_used_before_it_exists_or_taken_away_before_its_replacement_is_there(
    known: Known, wanted: dict[ServicePortName, Fragment], busy: set[RealOf]
) -> None:
    simulation, desired = Simulation(known, busy), Desired(wanted)
    rules_last = known.iptables_mode_serves

    def entries_are_there() -> bool:
        return all(entry in known.entries[name] for name, entry in desired.entries)

    def servers_are_there() -> bool:
        return all(
            known.servers.get(key) == server
            and all(known.weights.get(key, {}).get(real) == weight for real, weight in reals.items())
            for key, (server, reals) in desired.servers.items()
        )

    def addresses_are_there() -> bool:
        return known.addresses >= desired.addresses.keys()

    def everything_is_there() -> bool:
        rules = known.rules == desired.rules(CONTEXT)
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
                    assert known.addresses == desired.addresses.keys()
                case AddEntries():
                    assert all(entry not in known.entries[name] for name, entry in part.items)
            simulation.take(part)


@given(kernels(), wishes, busy_reals)
def test_a_tcp_endpoint_with_connections_is_never_cut_off(
    known: Known, wanted: dict[ServicePortName, Fragment], busy: set[RealOf]
) -> None:
    simulation, desired = Simulation(known, busy), Desired(wanted)
    for step in simulation.steps(desired):
        for part in simulation.expanded(step):
            if isinstance(part, RemoveReals):
                assert not [item for item in part.items if item in busy and item.server.protocol == TCP]
            simulation.take(part)


def test_what_was_refused_is_not_remembered_and_asked_for_again() -> None:
    known = Known(SET_NAMES)
    server = VirtualServer(VirtualKey(6, ADDRESSES[0], 80), "rr")
    desired = Desired({NAMES[0]: Fragment(((server, {REALS[0]: 1}),), addresses=(ADDRESSES[0],))})
    simulation = Simulation(known)
    refused = {server, RealOf(server.key, REALS[0]), ADDRESSES[0]}
    first = [step for step in simulation.steps(desired) if isinstance(step, NetlinkStep)]
    for step in first:
        step.adopt(known, refused)
    assert [step for step in simulation.steps(desired) if isinstance(step, NetlinkStep)] == first
