"""The nftables backend against a real kernel: restarts, takeover, drift, refusals, counters, cleanup."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.factory import context, endpoint, packed, plan, service_port
from tests.kernel.nft_kernel import everything, listing, needs_nft, part, table, table_handle

from pointsman.backends.contract import PRESENT, CleanupContext, CleanupItem, Difference
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.backends.nftables.batch import Steps
from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.fields import find_traits
from pointsman.backends.nftables.mode import clean_up
from pointsman.backends.nftables.preflight import preflight
from pointsman.backends.nftables.reader import Reader
from pointsman.errors import KernelError
from pointsman.kernel.netlink import Answer, NetlinkSocket
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodePortAddresses
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

pytestmark = needs_nft

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
NODE = context(
    node_port_addresses=NodePortAddresses(match_all=False, addresses=(packed("10.9.9.9"),)),
)
Plans = dict[ServicePortName, ServicePlan]


def some_plans(count: int = 3, endpoints: int = 3) -> Plans:
    found: Plans = {}
    for number in range(count):
        port = service_port(
            name=f"svc-{number}", cluster_ip=f"10.96.0.{number + 1}", node_port=30000 + number
        )
        made = plan(
            port, *(endpoint(f"10.244.{number}.{n + 1}") for n in range(endpoints)), node_context=NODE
        )
        found[made.name] = made
    return found


def sticky_plan(*endpoints: str) -> ServicePlan:
    port = service_port(name="sticky", cluster_ip="10.96.1.1", affinity_seconds=600)
    return plan(port, *(endpoint(text) for text in endpoints), node_context=NODE)


def affinity_sets(namespace: Namespace) -> list[str]:
    return [line.split()[1] for line in table(namespace).splitlines() if line.startswith("\tset affinity-")]


def remember(namespace: Namespace, name: str, client: str) -> None:
    namespace.run(["nft", "add", "element", "ip", "kube-proxy", name, f"{{ {client} timeout 300s }}"])


def test_a_restart_over_our_own_table_keeps_affinity_and_its_handle(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    sticky = sticky_plan("10.244.1.1", "10.244.1.2")
    plans = {**some_plans(), sticky.name: sticky}
    backend.sync(everything(NODE, plans))
    first, second = affinity_sets(namespace)
    remember(namespace, first, "10.244.7.7")
    before = table_handle(namespace)
    restarted = NftablesBackend(Family.IPV4)
    report = restarted.sync(everything(NODE, plans))
    restarted.close()
    assert report.corrected == []
    assert table_handle(namespace) == before
    assert "10.244.7.7" in namespace.run(["nft", "list", "set", "ip", "kube-proxy", first])
    assert "10.244.7.7" not in namespace.run(["nft", "list", "set", "ip", "kube-proxy", second])


def test_a_restart_removes_what_is_no_longer_wanted(namespace: Namespace, backend: NftablesBackend) -> None:
    sticky = sticky_plan("10.244.1.1")
    backend.sync(everything(NODE, {**some_plans(3, 9), sticky.name: sticky}))
    assert "chain lb-9" in table(namespace)
    restarted = NftablesBackend(Family.IPV4)
    restarted.sync(everything(NODE, some_plans(1, 2)))
    restarted.close()
    after = table(namespace)
    assert "lb-9" not in after
    assert "affinity-" not in after
    assert "10.96.0.2" not in after


def test_a_vanished_endpoint_frees_only_its_own_clients(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    both, one = sticky_plan("10.244.1.1", "10.244.1.2"), sticky_plan("10.244.1.2")
    backend.sync(everything(NODE, {both.name: both}))
    first, second = affinity_sets(namespace)
    remember(namespace, first, "10.244.7.1")
    remember(namespace, second, "10.244.7.2")
    backend.sync(part(NODE, {one.name: one}, one.name))
    assert affinity_sets(namespace) == [second]
    assert "10.244.7.2" in table(namespace)
    assert "10.244.7.1" not in table(namespace)


def test_a_new_affinity_timeout_keeps_the_clients(namespace: Namespace, backend: NftablesBackend) -> None:
    old = sticky_plan("10.244.1.1")
    backend.sync(everything(NODE, {old.name: old}))
    (name,) = affinity_sets(namespace)
    remember(namespace, name, "10.244.7.1")
    port = service_port(name="sticky", cluster_ip="10.96.1.1", affinity_seconds=60)
    new = plan(port, endpoint("10.244.1.1"), node_context=NODE)
    backend.sync(part(NODE, {new.name: new}, new.name))
    assert "10.244.7.1" in table(namespace)
    assert "timeout 1m" in table(namespace)


@pytest.mark.parametrize("scenario", ["everything", "affinity-default"])
def test_kube_proxys_table_is_taken_over_in_one_transaction(
    namespace: Namespace, backend: NftablesBackend, scenario: str
) -> None:
    namespace.run(["nft", "-f", "-"], (GOLDEN / scenario / "nftables" / "nft.txt").read_text())
    socket = NftablesSocket()
    before = socket.read_generation()
    report = backend.sync(everything(NODE, some_plans()))
    assert socket.read_generation() == before + 1
    socket.close()
    assert [found.what for found in report.corrected] == ["table ip kube-proxy"]
    assert backend.prepare_comparison(everything(NODE, some_plans())).differences() == []


def test_a_damaged_table_of_ours_is_replaced(namespace: Namespace, backend: NftablesBackend) -> None:
    backend.sync(everything(NODE, some_plans()))
    namespace.run(["nft", "flush", "table", "ip", "kube-proxy"])
    namespace.run(["nft", "delete", "map", "ip", "kube-proxy", "local-endpoints"])
    restarted = NftablesBackend(Family.IPV4)
    restarted.sync(everything(NODE, some_plans()))
    assert restarted.prepare_comparison(everything(NODE, some_plans())).differences() == []
    restarted.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("delete table ip kube-proxy", "deleted"),
        ("flush chain ip kube-proxy nat-prerouting", "services"),
        ("delete element ip kube-proxy service-ips { 10.96.0.1 . tcp . 80 }", "lb-3"),
        ("add chain ip kube-proxy stranger", "stranger"),
        ("add rule ip kube-proxy services accept", "services"),
    ],
)
def test_foreign_changes_are_noticed_and_repaired(
    namespace: Namespace, backend: NftablesBackend, damage: str, words: str
) -> None:
    request = everything(NODE, some_plans())
    backend.sync(request)
    assert backend.find_drift() is None
    namespace.run(["nft", *damage.split()])
    noticed = backend.find_drift()
    assert noticed is not None
    assert words in str(noticed)
    assert backend.prepare_comparison(request).differences() != []
    backend.sync(request)
    assert backend.find_drift() is None
    assert backend.prepare_comparison(request).differences() == []


def test_changes_in_other_tables_are_not_drift(namespace: Namespace, backend: NftablesBackend) -> None:
    backend.sync(everything(NODE, some_plans()))
    namespace.run(["nft", "add", "table", "ip", "other"])
    assert backend.find_drift() is None
    other = NftablesBackend(Family.IPV6)
    other.sync(everything(context(Family.IPV6), {}))
    other.close()
    assert backend.find_drift() is None


def test_a_foreign_change_between_two_commits_of_ours_is_still_noticed(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    plans = some_plans()
    backend.sync(everything(NODE, plans))
    namespace.run(["nft", "flush", "chain", "ip", "kube-proxy", "masquerading"])
    name = next(iter(plans))
    smaller = {**plans, name: plan(plans[name].port, endpoint("10.244.0.1"), node_context=NODE)}
    backend.sync(part(NODE, smaller, name))
    assert "masquerading" in str(backend.find_drift())


def test_an_incremental_sync_over_a_vanished_table_loads_everything(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    plans = some_plans()
    backend.sync(everything(NODE, plans))
    namespace.run(["nft", "flush", "ruleset"])
    name = next(iter(plans))
    plans[name] = plan(plans[name].port, endpoint("10.244.0.7"), node_context=NODE)
    report = backend.sync(part(NODE, plans, name))
    assert report.full
    assert report.drift == Difference("table ip kube-proxy", PRESENT)
    assert backend.prepare_comparison(everything(NODE, plans)).differences() == []


@pytest.mark.parametrize("full", [True, False])
def test_a_refused_service_port_is_left_out_and_the_rest_goes_in(
    namespace: Namespace, backend: NftablesBackend, full: bool
) -> None:
    plans = some_plans()
    # The planner settles claims before; the kernel is the last to say no.
    thief = plan(
        service_port(name="thief", cluster_ip="10.96.0.1"), endpoint("10.244.9.9"), node_context=NODE
    )
    extra = plan(
        service_port(name="late", cluster_ip="10.96.0.99"), endpoint("10.244.8.8"), node_context=NODE
    )
    if not full:
        backend.sync(everything(NODE, plans))
    wanted = {**plans, thief.name: thief, extra.name: extra}
    report = backend.sync(everything(NODE, wanted) if full else part(NODE, wanted, thief.name, extra.name))
    assert list(report.rejected) == [thief.name]
    assert "10.96.0.1 . tcp . 80" in report.rejected[thief.name]
    assert "10.96.0.99 . tcp . 80" in table(namespace)
    assert "10.244.9.9" not in table(namespace)
    later = backend.sync(part(NODE, plans, thief.name))
    assert later.rejected == {}


def test_a_failed_sync_changes_nothing(namespace: Namespace, backend: NftablesBackend) -> None:
    plans = some_plans()
    backend.sync(everything(NODE, plans))
    before = listing(namespace)
    socket = NftablesSocket()
    with pytest.raises(KernelError):
        socket.commit([Steps(find_traits(Family.IPV4)).delete_chain("no-such-chain").message])
    socket.close()
    assert listing(namespace) == before


@contextlib.contextmanager
def before_kernel_threads() -> Iterator[None]:
    """Threads of the kernel on this CPU get their turn when we wait for something, and not before."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        pytest.skip("real-time priority is not allowed here")
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cpus)})
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cpus)


def test_elements_read_while_the_kernel_grows_their_table_are_all_there(
    namespace: Namespace, backend: NftablesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their order changes between two parts of a listing: some come twice, and as many not at all."""
    plans = some_plans(200, 20)
    contents = Contents(NODE)
    contents.load({name: compile_fragment(made, NODE) for name, made in plans.items()})
    receive = NetlinkSocket.receive

    def receive_and_wait(sock: NetlinkSocket, *, wait: bool = True) -> list[Answer]:
        answers = receive(sock, wait=wait)
        time.sleep(0.02)
        return answers

    with contextlib.closing(NftablesSocket()) as sock, before_kernel_threads():
        backend.sync(everything(NODE, plans))
        monkeypatch.setattr(NetlinkSocket, "receive", receive_and_wait)
        found = Reader(sock, find_traits(Family.IPV4)).read_elements(contents.sets["endpoints"])
    assert len(found) == 200 * 20


def test_verify_names_the_service_behind_a_difference(namespace: Namespace, backend: NftablesBackend) -> None:
    request = everything(NODE, some_plans())
    backend.sync(request)
    namespace.run(
        ["nft", "delete", "element", "ip", "kube-proxy", "endpoints", "{ 10.96.0.2 . tcp . 80 . 1 }"]
    )
    namespace.run(["nft", "add", "element", "ip", "kube-proxy", "cluster-ips", "{ 10.96.77.77 }"])
    missing, extra = sorted(
        backend.prepare_comparison(request).differences(), key=lambda d: d.want, reverse=True
    )
    assert (missing.what, missing.want, missing.have) == (
        "map endpoints 10.96.0.2 . tcp . 80 . 1",
        "10.244.1.2 . 8080",
        "",
    )
    assert str(missing.owner) == "default/svc-1:http"
    assert (extra.what, extra.want, extra.have) == ("set cluster-ips 10.96.77.77", "", "present")


def test_verify_names_a_service_in_full_where_the_comment_is_cut(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    port = service_port(name="s" * 63, port_name="p" * 63, namespace="n" * 63, cluster_ip="10.96.0.1")
    made = plan(port, endpoint("10.244.1.1"), node_context=NODE)
    request = everything(NODE, {made.name: made})
    backend.sync(request)
    namespace.run(["nft", "flush", "map", "ip", "kube-proxy", "endpoints"])
    assert {difference.owner for difference in backend.prepare_comparison(request).differences()} == {
        made.name
    }


def test_verify_without_a_table_says_so(namespace: Namespace, backend: NftablesBackend) -> None:
    (difference,) = backend.prepare_comparison(everything(NODE, some_plans())).differences()
    assert difference.what == "table ip kube-proxy"
    assert difference.have == ""


def test_a_changed_context_reloads_everything(namespace: Namespace, backend: NftablesBackend) -> None:
    backend.sync(everything(NODE, some_plans()))
    other = context(masquerade_bit=5)
    report = backend.sync(part(other, some_plans()))
    assert report.full
    assert "0x00000020" in table(namespace)


def test_reports_count_elements(namespace: Namespace, backend: NftablesBackend) -> None:
    plans = some_plans(3, 4)
    report = backend.sync(everything(NODE, plans))
    assert report.rules_total["endpoints"] == 12
    assert report.rules_total["service-nodeports"] == 3
    assert report.batch_bytes > 1000
    name = next(iter(plans))
    after = backend.sync(part(NODE, {other: p for other, p in plans.items() if other != name}, name))
    assert after.rules_total["endpoints"] == 8
    assert after.rules_last["endpoints"] == 4


def test_cleanup_removes_both_tables_and_is_content_with_none(namespace: Namespace) -> None:
    for family in Family:
        backend = NftablesBackend(family)
        backend.sync(everything(context(family), {}))
        backend.close()
    namespace.run(["nft", "add", "table", "ip", "other"])
    cleaning = CleanupContext(Sysctls(), tuple(Family))
    both = [CleanupItem("table", "ip kube-proxy"), CleanupItem("table", "ip6 kube-proxy")]
    assert list(clean_up(cleaning)) == both
    assert listing(namespace).split() == ["table", "ip", "other", "{", "}"]
    assert list(clean_up(cleaning)) == []


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_preflight_finds_nothing_missing_and_leaves_no_trace(namespace: Namespace, family: Family) -> None:
    assert preflight(family) == []
    assert listing(namespace) == ""
