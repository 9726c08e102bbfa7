"""The printed table and the encoded batch make the same kernel state, and it reads back as it was meant."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernel.nft_kernel import everything, listing, needs_nft, new_namespace, part
from tests.unit.backends.nftables.nft_strategies import contexts, histories, plans

from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.backends.nftables.mode import render
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family

pytestmark = needs_nft


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    space = new_namespace()
    yield space
    space.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), family=st.sampled_from(list(Family)), counters=st.booleans())
def test_text_and_netlink_give_the_same_listing(
    namespace: Namespace, data: st.DataObject, family: Family, counters: bool
) -> None:
    node = data.draw(contexts(family))
    request = everything(node, data.draw(plans(node)))
    namespace.run(["nft", "flush", "ruleset"])
    with namespace.entered():
        backend = NftablesBackend(family, service_metrics=counters)
        try:
            assert backend.sync(request).rejected == {}
            by_netlink = listing(namespace)
            assert backend.prepare_comparison(request).differences() == []
        finally:
            backend.close()
    namespace.run(["nft", "flush", "ruleset"])
    namespace.run(["nft", "-f", "-"], render(request, counters=counters))
    assert listing(namespace) == by_netlink


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), family=st.sampled_from(list(Family)))
def test_incremental_syncs_and_restarts_leave_what_was_wanted(
    namespace: Namespace, data: st.DataObject, family: Family
) -> None:
    node, states = data.draw(histories(family))
    namespace.run(["nft", "flush", "ruleset"])
    with namespace.entered():
        backend = NftablesBackend(family)
        try:
            backend.sync(everything(node, states[0]))
            for before, after in itertools.pairwise(states):
                changed = [n for n in before.keys() | after.keys() if before.get(n) != after.get(n)]
                report = backend.sync(part(node, after, *changed))
                assert (report.full, report.rejected) == (False, {})
                assert backend.prepare_comparison(everything(node, after)).differences() == []
                assert backend.find_drift() is None
            restarted = NftablesBackend(family)
            try:
                restarted.sync(everything(node, states[-1]))
                assert restarted.prepare_comparison(everything(node, states[-1])).differences() == []
                assert restarted.find_drift() is None
            finally:
                restarted.close()
        finally:
            backend.close()
