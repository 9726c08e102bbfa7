"""Elements that others put into our sets, where no count shows them.

Kernels before 6.16 do not count elements, and none counts the one that matches when no other does (`*`).
"""

from __future__ import annotations

import contextlib
from collections import Counter

import msgspec
import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.kernel.nft_kernel import everything, find_drift, needs_nft, part, table

from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.backends.nftables.counters import read_element_counts
from pointsman.backends.nftables.reader import KernelTable, Reader
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

pytestmark = needs_nft

NODE = context()
Plans = dict[ServicePortName, ServicePlan]


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before Linux 6.16."""
    read = Reader.read_table

    def without_counts(reader: Reader) -> KernelTable | None:
        held = read(reader)
        if held is None:
            return None
        sets = {name: one._replace(elements=None) for name, one in held.sets.items()}
        return msgspec.structs.replace(held, sets=sets)

    monkeypatch.setattr(Reader, "read_table", without_counts)


def made(number: int, endpoints: int = 2) -> ServicePlan:
    port = service_port(name=f"svc-{number}", cluster_ip=f"10.96.0.{number}", node_port=30000 + number)
    return plan(port, *(endpoint(f"10.244.{number}.{n + 1}") for n in range(endpoints)), node_context=NODE)


def some_plans(count: int = 4) -> Plans:
    return {one.name: one for one in (made(number + 1) for number in range(count))}


def nft(namespace: Namespace, command: str) -> None:
    namespace.run(["nft", "-f", "-"], f"{command}\n")


# --- what stands in the way of a change ---------------------------------------------------------------------


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(
    "element",
    [
        "endpoints { 10.96.0.9 . tcp . 80 . 1 : 10.66.6.6 . 666 }",
        "service-ips { 10.96.0.9 . tcp . 80 : drop }",
    ],
    ids=["slot", "verdict"],
)
def test_an_element_of_others_under_the_key_of_a_new_service_costs_no_service(
    namespace: Namespace, backend: NftablesBackend, element: str
) -> None:
    plans = some_plans()
    backend.sync(everything(NODE, plans))
    nft(namespace, f"add element ip kube-proxy {element}")
    new = made(9)
    plans[new.name] = new
    report = backend.sync(part(NODE, plans, new.name))
    assert report.rejected == {}
    assert report.drift is not None
    assert report.drift.change == "changed"
    assert "10.96.0.9 . tcp . 80" in report.drift.what
    assert backend.prepare_comparison(everything(NODE, plans)).differences() == []


@pytest.mark.usefixtures("uncounted")
def test_a_slot_that_others_deleted_costs_no_service_when_it_shrinks(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    plans = some_plans()
    backend.sync(everything(NODE, plans))
    nft(namespace, "delete element ip kube-proxy endpoints { 10.96.0.2 . tcp . 80 . 1 }")
    smaller = made(2, endpoints=1)
    plans[smaller.name] = smaller
    report = backend.sync(part(NODE, plans, smaller.name))
    assert report.rejected == {}
    assert report.drift is not None
    assert report.drift.change == "deleted"
    assert backend.prepare_comparison(everything(NODE, plans)).differences() == []


def test_a_service_that_a_fresh_table_refused_costs_no_full_load_at_its_next_changes(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    plans = some_plans()
    backend.sync(everything(NODE, plans))

    def thief(endpoints: int) -> ServicePlan:
        port = service_port(name="thief", cluster_ip="10.96.0.1")
        return plan(port, *(endpoint(f"10.244.66.{n + 1}") for n in range(endpoints)), node_context=NODE)

    bad = thief(1)
    plans[bad.name] = bad
    proved = backend.sync(part(NODE, plans, bad.name))
    assert (list(proved.rejected), proved.full, proved.drift) == ([bad.name], True, None)
    for endpoints in (2, 3):
        plans[bad.name] = thief(endpoints)
        good = made(endpoints + 1, endpoints=3)
        plans[good.name] = good
        report = backend.sync(part(NODE, plans, bad.name, good.name))
        assert (list(report.rejected), report.full) == ([bad.name], False)
    assert "10.244.66" not in table(namespace)
    assert "10.244.4.3" in table(namespace)
    del plans[bad.name]
    assert backend.sync(part(NODE, plans, bad.name)).rejected == {}


# --- what no count shows ------------------------------------------------------------------------------------

CATCH_ALLS = [
    ("map service-ips *", "service-ips { * : drop }"),
    ("map no-endpoint-services *", "no-endpoint-services { * : drop }"),
    ("map service-nodeports *", "service-nodeports { * : accept }"),
    ("map endpoints *", "endpoints { * : 10.66.6.6 . 666 }"),
    ("set cluster-ips *", "cluster-ips { * }"),
    ("set firewall-allow *", "firewall-allow { * }"),
]


@pytest.mark.parametrize(("what", "element"), CATCH_ALLS, ids=[what for what, _ in CATCH_ALLS])
def test_an_element_that_matches_everything_else_is_noticed_shown_and_repaired(
    namespace: Namespace, backend: NftablesBackend, what: str, element: str
) -> None:
    plans = some_plans()
    request = everything(NODE, plans)
    backend.sync(request)
    assert backend.find_drift() is None
    nft(namespace, f"add element ip kube-proxy {element}")
    found = backend.find_drift()
    assert found is not None
    assert (found.what, found.change) == (what, "added")
    assert [one.what for one in backend.prepare_comparison(request).differences()] == [what]
    one_service = backend.prepare_comparison(request, only=[next(iter(plans))])
    assert [one.what for one in one_service.differences()] == [what]
    backend.sync(request)
    assert backend.find_drift() is None
    assert backend.prepare_comparison(request).differences() == []


def test_counters_are_read_beside_an_element_that_matches_everything_else(namespace: Namespace) -> None:
    """In whatever order: the kernel's hash table may grow meanwhile."""
    plans = some_plans()
    with contextlib.closing(NftablesBackend(Family.IPV4, service_metrics=True)) as backend:
        backend.sync(everything(NODE, plans))
        before = Counter(read_element_counts(Family.IPV4) or ())
        nft(namespace, "add element ip kube-proxy service-ips { * : drop }")
        nft(namespace, "add element ip kube-proxy endpoints { * : 10.66.6.6 . 666 }")
        assert Counter(read_element_counts(Family.IPV4) or ()) == before
        assert before
        assert set(backend.count_traffic().connections) == set(plans)


ADDED = [
    ("map service-ips 10.9.9.9 . tcp . 80", "service-ips { 10.9.9.9 . tcp . 80 : drop }"),
    ("map endpoints 10.96.0.1 . tcp . 80 . 7", "endpoints { 10.96.0.1 . tcp . 80 . 7 : 10.66.6.6 . 666 }"),
    ("set cluster-ips 10.9.9.9", "cluster-ips { 10.9.9.9 }"),
    (
        "set firewall-allow 10.9.9.9 . tcp . 80 . 10.0.0.0/8",
        "firewall-allow { 10.9.9.9 . tcp . 80 . 10.0.0.0/8 }",
    ),
]


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(("what", "element"), ADDED, ids=[what for what, _ in ADDED])
def test_an_added_element_is_found_by_comparing_where_the_kernel_does_not_count(
    namespace: Namespace, backend: NftablesBackend, what: str, element: str
) -> None:
    request = everything(NODE, some_plans(200))
    backend.sync(request)
    nft(namespace, "add table ip other")
    assert find_drift(backend, request) is None
    nft(namespace, f"add element ip kube-proxy {element}")
    found = find_drift(backend, request)
    assert found is not None
    assert (found.what, found.change) == (what, "added")
    backend.sync(request)
    nft(namespace, "delete table ip other")
    assert find_drift(backend, request) is None
    assert backend.prepare_comparison(request).differences() == []
