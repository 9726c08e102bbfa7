"""Endpoints that go and come back, restarts, damage, mode switch and clean-up, with real packets."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from tests.factory import packed
from tests.harness.flows import ask_all
from tests.harness.lab import build_lab
from tests.harness.waiting import wait_until
from tests.kernel.uml.inside.tools import IPTABLES, SAVE
from tests.kernel.uml.inside.world import IpvsWorld

from pointsman.backends import mode_named
from pointsman.backends.contract import CleanupContext, CleanupStatus, Difference, SyncRequest, Traffic
from pointsman.backends.iptables import cleanup as iptables_cleanup
from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.backends.ipvs.apply import DRAIN_SECONDS, IpvsSettings
from pointsman.backends.ipvs.cleanup import cleanup
from pointsman.backends.ipvs.mode import count_connections
from pointsman.errors import KernelError
from pointsman.kernel.conntrack import ConntrackTable
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.rtnl import RouteSocket
from pointsman.kernel.sysctl import Sysctls
from pointsman.kernel.tracked_flows import FlowQuery
from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import BRIDGE, HOSTS
from pointsman.lab.objects import Backend, LabService, backends
from pointsman.lab.probe import Kind, TrafficGenerator
from pointsman.model.addresses import Family
from pointsman.model.service import ServicePortName
from pointsman.obs.registry import Metrics
from pointsman.sync.flow_cleaner import StaleFlowCleaner

MODULE_LOADER = Path("/proc/sys/kernel/modprobe")
"""The program that the kernel starts for a module it wants."""
WEB = LabService("web", 1, backends("pod1", "pod2", "pod4"), type="LoadBalancer", external=True)
STICKY = LabService("sticky", 2, backends("pod1", "pod2", "pod4"), type="LoadBalancer", affinity_seconds=60)
DNS = LabService("dns", 3, backends("pod1", "pod4"), protocols=("UDP",))


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    with build_lab() as cluster:
        yield cluster


@pytest.fixture
def world(shared_cluster: Cluster, iptables: dict[Family, Iptables]) -> Iterator[IpvsWorld]:
    world = IpvsWorld(shared_cluster, iptables)
    yield world
    world.close()
    with shared_cluster["n1"].entered():
        assert all(one.status is CleanupStatus.REMOVED for one in cleanup(list(iptables.values())))


@pytest.fixture
def _no_more_modules() -> Iterator[None]:
    """A kernel whose modules for schedulers are not installed; those it has loaded stay."""
    before = MODULE_LOADER.read_text()
    MODULE_LOADER.write_text("\n")
    yield
    MODULE_LOADER.write_text(before)


@contextlib.contextmanager
def _before_kernel_threads() -> Iterator[None]:
    """On the only CPU, threads of the kernel get their turn when we wait for something, and not before."""
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _only(service: LabService, *hosts: str) -> LabService:
    return msgspec.structs.replace(service, backends=backends(*hosts))


def _weights(world: IpvsWorld, address: str) -> dict[str, str]:
    """Real server -> weight, as ipvsadm tells."""
    lines = world.in_node("ipvsadm", "-Sn").splitlines()
    return {line.split()[4]: line.split()[-1] for line in lines if line.startswith(f"-a -t {address}:80 ")}


def test_round_robin_is_exact(world: IpvsWorld) -> None:
    world.apply([WEB])
    shares = Counter(outcome.by for outcome in world.ask("pod3", WEB, count=30))
    assert shares == {"pod1": 10, "pod2": 10, "pod4": 10}


def test_ipv6_addresses_are_in_force_when_the_sync_is_done(world: IpvsWorld) -> None:
    """A packet that came before the route of its address would be forwarded, and its flow be untranslated for good."""
    with world.cluster["n1"].entered():
        route = RouteSocket()
    try:
        with _before_kernel_threads():
            world.apply([WEB])
            routes = route.find_routes([packed(WEB.address(to, 6)) for to in ("cluster", "lb", "external")])
        assert [way.local for way in routes.values()] == [True] * 3
    finally:
        route.close()


def test_an_ipv6_address_that_is_not_routed_locally_is_reported_and_holds_nothing_up(
    world: IpvsWorld,
) -> None:
    world.in_node("ip", "-6", "rule", "add", "priority", "2", "lookup", "local")
    world.in_node("ip", "-6", "rule", "del", "priority", "0")
    world.in_node("ip", "-6", "rule", "add", "priority", "1", "to", WEB.address("lb", 6), "unreachable")
    try:
        report = world.apply([WEB])[Family.IPV6].report
        (condition,) = report.conditions
        assert condition.type == "AddressesRouted"
        assert condition.message == f"not routed locally on kube-ipvs0: {WEB.address('lb', 6)}"
        assert not report.rejected
        assert world.answerers("pod3", WEB, family=6) == {"pod1", "pod2", "pod4"}
    finally:
        world.in_node("ip", "-6", "rule", "add", "priority", "0", "lookup", "local")
        for priority in ("1", "2"):
            world.in_node("ip", "-6", "rule", "del", "priority", priority)


def test_a_pod_reaches_itself_over_ipv6_at_once(world: IpvsWorld) -> None:
    alone = _only(WEB, "pod1")
    with _before_kernel_threads():
        world.apply([alone])
        outcomes = world.ask("pod1", alone, count=3, family=6)
    assert {(outcome.kind, outcome.seen) for outcome in outcomes} == {(Kind.ANSWERED, BRIDGE["n1"][6])}


def test_a_busy_udp_client_over_ipv6_is_answered_when_its_service_comes(world: IpvsWorld) -> None:
    """What it sends between the search for untranslated flows and the next change is not looked at again."""
    alone = _only(DNS, "pod1")
    cleaner = StaleFlowCleaner(Family.IPV6, Metrics("ipvs"))
    flow = world.flow("pod1", alone, family=6, protocol="UDP")
    assert flow.ask().kind is not Kind.ANSWERED
    with _before_kernel_threads():
        outcome = world.apply([alone])[Family.IPV6]
        cleaner.add(outcome.changes, outcome.context)
        with world.cluster["n1"].entered():
            assert cleaner.run().problem == ""
        answers = [flow.ask().by for _ in range(2)]
    assert answers == ["pod1", "pod1"], answers
    flow.close()


def test_affinity_keeps_a_client_at_its_backend(world: IpvsWorld) -> None:
    world.apply([STICKY])
    for host, to in (("pod3", "cluster"), ("client", "nodeport"), ("client", "lb")):
        assert len(world.answerers(host, STICKY, to, count=9)) == 1
        assert len(world.answerers(host, STICKY, to, count=9, family=6)) == 1


@pytest.mark.parametrize(
    ("host", "to", "family"), [("pod3", "cluster", 4), ("client", "nodeport", 4), ("client", "lb", 6)]
)
def test_a_connection_survives_the_removal_of_its_endpoint(
    world: IpvsWorld, host: str, to: str, family: int
) -> None:
    world.apply([WEB])
    flow = world.flow(host, WEB, to, family)
    server = flow.ask().by
    rest = {"pod1", "pod2", "pod4"} - {server}
    world.apply([_only(WEB, *sorted(rest))])
    assert world.answerers(host, WEB, to, family=family) == rest
    assert flow.ask().by == server
    assert world.remove_drained(61) == 0
    assert flow.ask().by == server
    flow.close()


def test_connections_to_gone_endpoints_are_reset_where_the_service_asks(world: IpvsWorld) -> None:
    """A terminating endpoint is not gone yet; the first packet after that is dropped, the one sent again is reset."""
    asks, emptied = (
        msgspec.structs.replace(
            _only(WEB, "pod1"),
            name=name,
            number=number,
            annotations={"pointsman.dev/reset-gone": "true"},
        )
        for name, number in (("asks", 4), ("emptied", 5))
    )
    places = (("pod3", "cluster", 4), ("client", "nodeport", 4), ("client", "lb", 6), ("n1", "cluster", 6))
    cleaners = {family: StaleFlowCleaner(family, Metrics("ipvs")) for family in Family}

    def apply(*services: LabService) -> None:
        for family, outcome in world.apply(services).items():
            cleaners[family].add(outcome.changes, outcome.context)
            with world.cluster["n1"].entered():
                assert not cleaners[family].run().problem

    apply(asks, emptied)
    flows = [
        world.flow(host, service, to, family) for service in (asks, emptied) for host, to, family in places
    ]
    assert {outcome.by for outcome in ask_all(flows)} == {"pod1"}
    terminating = (Backend("pod1", {"ready": False, "serving": True, "terminating": True}), Backend("pod4"))
    apply(*(msgspec.structs.replace(service, backends=terminating) for service in (asks, emptied)))
    assert {outcome.by for outcome in ask_all(flows)} == {"pod1"}
    apply(_only(asks, "pod4"), _only(emptied))
    assert [outcome.kind for outcome in ask_all(flows)] == [Kind.REFUSED] * len(flows)
    assert world.backends[Family.IPV4].draining == 0
    for flow in flows:
        flow.close()


def test_a_drained_endpoint_goes_when_its_last_connection_is_gone(world: IpvsWorld) -> None:
    world.apply([_only(WEB, "pod1")])
    flow = world.flow("pod3", WEB)
    assert flow.ask().by == "pod1"
    world.apply([_only(WEB, "pod4")])
    assert _weights(world, "10.96.1.1") == {"10.244.1.11:8080": "0", "10.244.2.14:8080": "1"}
    flow.abort()
    backend = world.backends[Family.IPV4]
    assert wait_until(lambda: (world.remove_drained(61), backend.draining)[1], lambda left: left == 0) == 0
    assert _weights(world, "10.96.1.1") == {"10.244.2.14:8080": "1"}


def test_nothing_drains_for_ever(world: IpvsWorld) -> None:
    world.apply([_only(WEB, "pod1")])
    flow = world.flow("pod3", WEB)
    world.apply([_only(WEB, "pod4")])
    assert world.remove_drained(DRAIN_SECONDS - 1) == 0
    assert world.remove_drained(61) == 1
    assert _weights(world, "10.96.1.1") == {"10.244.2.14:8080": "1"}
    flow.close()


def test_an_endpoint_that_returns_while_it_drains_is_used_again(world: IpvsWorld) -> None:
    world.apply([_only(WEB, "pod1", "pod4")])
    flow = world.flow("pod3", WEB)
    server = flow.ask().by
    other = "pod4" if server == "pod1" else "pod1"
    world.apply([_only(WEB, other)])
    world.apply([_only(WEB, "pod1", "pod4")])
    assert world.backends[Family.IPV4].draining == 0
    assert world.answerers("pod3", WEB) == {"pod1", "pod4"}
    assert flow.ask().by == server
    flow.close()


def test_a_restarted_proxy_goes_on_draining(world: IpvsWorld) -> None:
    world.apply([_only(WEB, "pod1")])
    flow = world.flow("pod3", WEB)
    world.apply([_only(WEB, "pod4")])
    world.restart()
    world.apply([_only(WEB, "pod4")])
    assert world.backends[Family.IPV4].draining == 1
    assert flow.ask().by == "pod1"
    assert world.answerers("pod3", WEB) == {"pod4"}
    world.restart()
    world.apply([_only(WEB, "pod1", "pod4")])
    assert world.backends[Family.IPV4].draining == 0
    assert set(_weights(world, "10.96.1.1").values()) == {"1"}
    flow.close()


def test_a_udp_flow_moves_at_once_when_its_endpoint_goes(world: IpvsWorld) -> None:
    world.apply([DNS])
    flow = world.flow("pod3", DNS, protocol="UDP")
    server = flow.ask().by
    other = "pod4" if server == "pod1" else "pod1"
    world.apply([_only(DNS, other)])
    answers = [flow.ask() for _ in range(3)]
    assert answers[-1].by == other
    flow.close()


def test_a_restart_over_existing_state_writes_no_server_and_loses_no_connection(world: IpvsWorld) -> None:
    world.apply([WEB, STICKY, DNS])
    flow = world.flow("client", WEB, "lb")
    server = flow.ask().by
    world.restart()
    for outcome in world.apply([WEB, STICKY, DNS]).values():
        assert outcome.report.full
        assert set(outcome.report.rules_last) == {"nat", "filter"}
        assert not outcome.report.corrected
    assert flow.ask().by == server
    flow.close()


def test_a_small_change_writes_only_itself(world: IpvsWorld) -> None:
    world.apply([WEB, STICKY, DNS])
    four = world.apply([WEB, STICKY, _only(DNS, "pod1")])[Family.IPV4].report
    assert four.rules_last == {"real servers": 1}
    new = LabService("new", 9, backends("pod4"))
    four = world.apply([WEB, STICKY, _only(DNS, "pod1"), new])[Family.IPV4].report
    assert four.rules_last == {"ipset entries": 2, "virtual servers": 1, "real servers": 1, "addresses": 1}


@pytest.mark.parametrize(
    ("damage", "noticed"),
    [
        (("ipvsadm", "-D", "-t", "10.96.1.1:80"), "virtual server tcp 10.96.1.1:80: deleted"),
        (("ipvsadm", "-A", "-t", "10.96.99.99:80", "-s", "rr"), "tcp 10.96.99.99:80: added"),
        (("ipvsadm", "-E", "-t", "10.96.1.1:80", "-s", "lc"), "tcp 10.96.1.1:80: changed"),
        (("ip", "addr", "del", "10.96.1.1/32", "dev", "kube-ipvs0"), "addresses of kube-ipvs0"),
        (("ipset", "flush", "KUBE-CLUSTER-IP"), "KUBE-CLUSTER-IP"),
        ((IPTABLES, "-t", "nat", "-F", "KUBE-SERVICES"), "rules that match"),
        (("ip", "link", "del", "kube-ipvs0"), "addresses of kube-ipvs0"),
    ],
)
def test_damage_is_noticed_and_repaired(world: IpvsWorld, damage: tuple[str, ...], noticed: str) -> None:
    world.apply([WEB])
    backend = world.backends[Family.IPV4]
    with world.cluster["n1"].entered():
        assert backend.find_drift() is None
    world.in_node(*damage)
    with world.cluster["n1"].entered():
        assert noticed in str(backend.find_drift())
    world.apply([WEB], full=True)
    with world.cluster["n1"].entered():
        assert backend.find_drift() is None
    assert world.answerers("client", WEB) == {"pod1", "pod2", "pod4"}
    assert world.answerers("client", WEB, "lb") == {"pod1", "pod2", "pod4"}


_REAL = ("-t", "10.96.1.1:80", "-r", "10.244.1.11:8080")
_PORTALS = ("-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES")


@pytest.mark.parametrize(
    "damage",
    [
        [("ipvsadm", "-e", *_REAL, "-m", "-w", "7")],
        [("ipvsadm", "-d", *_REAL)],
        [("ipvsadm", "-a", "-t", "10.96.1.1:80", "-r", "192.0.2.1:80", "-m")],
        [
            ("ipset", "del", "KUBE-CLUSTER-IP", "10.96.1.1,tcp:80"),
            ("ipset", "add", "KUBE-CLUSTER-IP", "10.96.99.99,tcp:80"),
        ],
        [(IPTABLES, "-t", "nat", "-D", "PREROUTING", *_PORTALS)],
        [(IPTABLES, "-t", "nat", "-F", "KUBE-MARK-MASQ")],
        [(IPTABLES, "-t", "nat", "-R", "KUBE-MARK-MASQ", "1", "-j", "RETURN")],
    ],
    ids=["weight", "real server gone", "real server added", "member swapped", "jump", "rule gone", "rule"],
)
def test_damage_that_no_count_shows_is_found_by_comparing_and_repaired(
    world: IpvsWorld, damage: list[tuple[str, ...]]
) -> None:
    def differences() -> list[Difference]:
        reconciler = world.reconcilers[Family.IPV4]
        context = world.contexts[Family.IPV4]
        with world.cluster["n1"].entered():
            return reconciler.prepare_comparison(reconciler.snapshot(), context).differences()

    world.apply([WEB])
    assert differences() == []
    for command in damage:
        world.in_node(*command)
    with world.cluster["n1"].entered():
        assert world.backends[Family.IPV4].find_drift() is None
    assert differences() != []
    world.apply([WEB], full=True)
    assert differences() == []
    assert _weights(world, "10.96.1.1") == THREE


def test_damage_that_brings_back_an_earlier_state_is_noticed(world: IpvsWorld) -> None:
    backend = world.backends[Family.IPV4]
    world.apply([WEB])
    with world.cluster["n1"].entered():
        assert backend.find_drift() is None
    world.apply([WEB, DNS])
    world.in_node("ipvsadm", "-D", "-u", "10.96.1.3:80")
    with world.cluster["n1"].entered():
        assert "virtual server udp 10.96.1.3:80: deleted" in str(backend.find_drift())
        world.apply([WEB, DNS], full=True)
        assert backend.find_drift() is None
        assert backend.find_drift() is None


THREE = {"10.244.1.11:8080": "1", "10.244.1.12:8080": "1", "10.244.2.14:8080": "1"}


@pytest.mark.parametrize(
    "interference",
    [
        ("ipvsadm", "-D", "-t", "10.96.1.1:80"),
        ("ipvsadm", "-d", "-t", "10.96.1.1:80", "-r", "10.244.1.11:8080"),
        ("ipvsadm", "-a", "-t", "10.96.1.1:80", "-r", "10.244.1.12:8080", "-m", "-w", "7"),
    ],
    ids=lambda command: " ".join(command[1:]),
)
def test_a_change_succeeds_where_somebody_else_was_faster(
    world: IpvsWorld, interference: tuple[str, ...]
) -> None:
    world.apply([_only(WEB, "pod1", "pod4")])
    world.in_node(*interference)
    world.apply([_only(WEB, "pod4")])
    outcome = world.apply([WEB])[Family.IPV4]
    assert not outcome.report.full
    assert not outcome.report.rejected
    assert _weights(world, "10.96.1.1") == THREE


def test_a_virtual_server_that_somebody_made_before_us_is_taken_over(world: IpvsWorld) -> None:
    world.apply([DNS])
    world.in_node("ipvsadm", "-A", "-t", "10.96.1.1:80", "-s", "lc")
    world.in_node("ipvsadm", "-a", "-t", "10.96.1.1:80", "-r", "192.0.2.1:80", "-m")
    outcome = world.apply([DNS, WEB])[Family.IPV4]
    assert not outcome.report.full
    assert not outcome.report.rejected
    assert "-A -t 10.96.1.1:80 -s rr" in world.in_node("ipvsadm", "-Sn")
    assert _weights(world, "10.96.1.1") == THREE


@pytest.mark.usefixtures("_no_more_modules")
def test_what_the_kernel_refuses_costs_its_service_ports_only(
    shared_cluster: Cluster, iptables: dict[Family, Iptables]
) -> None:
    world = IpvsWorld(shared_cluster, iptables, IpvsSettings(scheduler="sed"))
    others = [
        msgspec.structs.replace(one, annotations={"pointsman.dev/ipvs-scheduler": "rr"})
        for one in (STICKY, DNS)
    ]
    four = world.apply([WEB, *others])[Family.IPV4].report
    assert {name.service for name in four.rejected} == {"web"}
    assert all("with scheduler sed" in reason for reason in four.rejected.values())
    assert {"virtual servers", "ipset entries", "addresses", "nat", "filter"} <= four.rules_last.keys()
    later = world.apply([WEB, others[0]])[Family.IPV4].report
    assert not later.full
    assert {name.service for name in later.rejected} == {"web"}
    world.close()
    with shared_cluster["n1"].entered():
        list(cleanup(list(iptables.values())))


@pytest.mark.usefixtures("_no_more_modules")
def test_a_kernel_that_refuses_most_services_keeps_those_it_has(
    world: IpvsWorld, iptables: dict[Family, Iptables]
) -> None:
    world.apply([WEB, DNS])
    before = world.in_node("ipvsadm", "-Sn")
    other = IpvsWorld(world.cluster, iptables, IpvsSettings(scheduler="sed"))
    try:
        with pytest.raises(KernelError, match="2 of 2 service ports were rejected"):
            other.apply([STICKY, msgspec.structs.replace(STICKY, name="more", number=4)])
    finally:
        other.close()
    assert world.in_node("ipvsadm", "-Sn") == before


@pytest.mark.parametrize("option", [("family", "inet6"), ("maxelem", "1"), ("timeout", "60")])
def test_a_set_that_would_not_take_our_entries_is_made_anew(
    world: IpvsWorld, option: tuple[str, str]
) -> None:
    world.in_node("ipset", "create", "KUBE-CLUSTER-IP", "hash:ip,port", *option)
    assert not world.apply([WEB, DNS])[Family.IPV4].report.rejected
    made = world.in_node("ipset", "save", "KUBE-CLUSTER-IP")
    assert "family inet hashsize 1024 maxelem 65536" in made
    assert "timeout" not in made
    assert made.count("\nadd ") == 2


def test_a_wrong_set_that_rules_use_fails_the_sync_and_says_what_to_do(world: IpvsWorld) -> None:
    world.in_node("ipset", "create", "KUBE-CLUSTER-IP", "hash:ip,port", "maxelem", "1")
    rule = ("INPUT", "-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst,dst", "-j", "ACCEPT")
    world.in_node(IPTABLES, "-A", *rule)
    try:
        with pytest.raises(KernelError, match=r"KUBE-CLUSTER-IP was created externally.*pointsman cleanup"):
            world.apply([WEB])
    finally:
        world.in_node(IPTABLES, "-D", *rule)


def test_cleanup_leaves_nothing_but_what_others_made(
    world: IpvsWorld, iptables: dict[Family, Iptables]
) -> None:
    world.in_node(IPTABLES, "-A", "INPUT", "-s", "192.0.2.1", "-j", "DROP")
    before = world.in_node(SAVE[Family.IPV4])
    world.apply([WEB, STICKY, DNS])
    with world.cluster["n1"].entered():
        assert list(cleanup(list(iptables.values())))
        assert list(cleanup(list(iptables.values()))) == []
    assert world.in_node("ipvsadm", "-Sn") == ""
    assert world.in_node("ipset", "save") == ""
    assert "kube-ipvs0" not in world.in_node("ip", "link")
    assert "KUBE-" not in world.in_node(SAVE[Family.IPV4])
    assert "KUBE-" not in world.in_node(SAVE[Family.IPV6])
    rules = [line for line in before.splitlines() if line.startswith("-A")]
    assert [x for x in world.in_node(SAVE[Family.IPV4]).splitlines() if x.startswith("-A")] == rules
    world.in_node(IPTABLES, "-F", "INPUT")


@pytest.mark.usefixtures("_no_more_modules")
def test_a_scheduler_can_be_chosen_per_service(world: IpvsWorld) -> None:
    outcomes = world.apply([WEB])
    annotated = WEB.manifests()[0]
    for wish, scheduler, complaint in (
        ("lc", "lc", ""),
        ("bogus", "rr", ""),
        ("sed", "rr", "lacks IPVS schedulers that Services request: sed"),
    ):
        annotated["metadata"]["annotations"] = {"pointsman.dev/ipvs-scheduler": wish}
        manifests = [annotated, *WEB.manifests()[1:]]
        outcome = world.apply_manifests(Family.IPV4, manifests)
        assert f"-A -t 10.96.1.1:80 -s {scheduler}" in world.in_node("ipvsadm", "-Sn")
        assert complaint in " ".join(condition.message for condition in outcome.report.conditions)
        assert not outcome.report.rejected
    assert not outcomes[Family.IPV4].report.conditions


def test_a_scheduler_that_is_not_loaded_yet_is_loaded_when_a_service_asks_for_it(world: IpvsWorld) -> None:
    if not MODULE_LOADER.read_text().strip():
        pytest.skip("this kernel was told to load no modules by itself")
    assert "ip_vs_nq" not in Path("/proc/modules").read_text()
    manifests = WEB.manifests()
    manifests[0]["metadata"]["annotations"] = {"pointsman.dev/ipvs-scheduler": "nq"}
    outcome = world.apply_manifests(Family.IPV4, manifests)
    assert "-A -t 10.96.1.1:80 -s nq" in world.in_node("ipvsadm", "-Sn")
    assert not outcome.report.conditions
    assert world.answerers("pod3", WEB) == {"pod1", "pod2", "pod4"}


def test_the_annotations_for_all_modes_choose_schedulers_and_weights(world: IpvsWorld) -> None:
    annotated = WEB.manifests()[0]
    for asked, scheduler, weight in (
        ({"scheduler": "least-connections"}, "-s lc", "-w 1"),
        ({"scheduler": "source-hash"}, "-s mh", "-w 1"),
        ({"weights": "node/n1=3"}, "-s wrr", "-w 3"),
        ({}, "-s rr", "-w 1"),
    ):
        annotated["metadata"]["annotations"] = {f"pointsman.dev/{k}": v for k, v in asked.items()}
        outcome = world.apply_manifests(Family.IPV4, [annotated, *WEB.manifests()[1:]])
        assert not outcome.report.rejected
        saved = world.in_node("ipvsadm", "-Sn").splitlines()
        assert any(line.startswith(f"-A -t 10.96.1.1:80 {scheduler}") for line in saved)
        assert any(line.startswith("-a -t 10.96.1.1:80") and line.endswith(weight) for line in saved)
        with world.cluster["n1"].entered():
            assert world.backends[Family.IPV4].find_drift() is None


def test_lc_gives_a_fresh_replica_every_connection_until_it_has_as_many_as_the_others(
    world: IpvsWorld,
) -> None:
    """What least-connections of nftables mode is compared with: there a fresh replica gets four times its share at most."""
    asked = {"pointsman.dev/scheduler": "least-connections"}
    held = []
    for service, count in ((_only(WEB, "pod1", "pod2"), 8), (WEB, 4)):
        annotated, *slices = service.manifests()
        annotated["metadata"]["annotations"] = asked
        world.apply_manifests(Family.IPV4, [annotated, *slices])
        flows = [world.flow("pod3", WEB) for _ in range(count)]
        answered = Counter(flow.ask().by for flow in flows)
        held += flows
    assert answered == {"pod4": 4}
    for flow in held:
        flow.abort()


def test_traffic_is_counted_per_service(world: IpvsWorld) -> None:
    world.apply([WEB, STICKY])
    world.ask("client", WEB, "lb", count=5)
    world.ask("client", WEB, "nodeport", count=3)

    def counted() -> Traffic:
        with world.cluster["n1"].entered():
            return world.backends[Family.IPV4].count_traffic()

    def by_service(figures: Mapping[ServicePortName, int]) -> dict[str, int]:
        return {name.service: number for name, number in figures.items()}

    found = wait_until(counted, lambda now: by_service(now.connections)["web"] >= 8)
    assert by_service(found.connections) == {"web": 8, "sticky": 0}
    assert by_service(found.packets)["web"] > 16
    assert by_service(found.bytes)["web"] > 0
    balancer = socket.inet_aton(WEB.address("lb", 4))
    with world.cluster["n1"].entered(), ConntrackTable(Family.IPV4) as table:
        counts = {(count.address, count.port): count.connections for count in count_connections(Family.IPV4)}
        flows = table.list_flows(FlowQuery(socket.IPPROTO_TCP, balancer, 80), lambda *_: True)
    assert counts[balancer, 80] == 5
    assert counts[socket.inet_aton("172.30.0.10"), WEB.node_port] == 3
    answering = {socket.inet_ntoa(flow.reply_source) for flow in flows}
    assert answering <= {HOSTS[pod].ipv4 for pod in ("pod1", "pod2", "pod4")}
    assert len(flows) == 5


def test_an_external_ip_that_is_the_nodes_own_is_served_and_not_bound(world: IpvsWorld) -> None:
    manifests = WEB.manifests()
    manifests[0]["spec"]["externalIPs"] = ["172.30.0.10"]
    world.apply_manifests(Family.IPV4, manifests)
    assert "-A -t 172.30.0.10:80 -s rr" in world.in_node("ipvsadm", "-Sn")
    assert "172.30.0.10" not in world.in_node("ip", "addr", "show", "dev", "kube-ipvs0")
    world.apply_manifests(Family.IPV4, [])
    assert "172.30.0.10/24" in world.in_node("ip", "addr", "show", "dev", "eth0")


def test_terminating_endpoints_serve_when_no_other_is_left(world: IpvsWorld) -> None:
    leaving = Backend("pod1", {"ready": False, "serving": True, "terminating": True})
    service = msgspec.structs.replace(WEB, backends=(leaving,))
    world.apply([service])
    assert world.answerers("client", service, "lb") == {"pod1"}
    world.apply([_only(WEB)])
    assert world.ask("client", WEB, "lb")[0].kind is Kind.REFUSED


def test_what_kube_proxy_made_is_removed_only_on_request(
    world: IpvsWorld, iptables: dict[Family, Iptables]
) -> None:
    tools = list(iptables.values())
    world.apply([WEB, DNS])
    before = world.in_node("ipvsadm", "-Sn"), world.in_node("ipset", "save")
    world.in_node("ip", "link", "set", "kube-ipvs0", "alias", "")
    with world.cluster["n1"].entered():
        (kept,) = cleanup(tools, all_proxies=False)
        assert (kept.name, kept.status) == ("kube-ipvs0", CleanupStatus.KEPT)
        assert kept in cleanup(tools, all_proxies=False, dry_run=True)
    world.apply([WEB, DNS], full=True)
    with world.cluster["n1"].entered():
        planned = list(cleanup(tools, all_proxies=False, dry_run=True))
        assert (world.in_node("ipvsadm", "-Sn"), world.in_node("ipset", "save")) == before
        assert list(cleanup(tools, all_proxies=False)) == planned
    assert world.in_node("ipvsadm", "-Sn") == world.in_node("ipset", "save") == ""
    assert "kube-ipvs0" not in world.in_node("ip", "link")
    assert "KUBE-" not in world.in_node(SAVE[Family.IPV4])


def test_a_switch_from_iptables_mode_and_back_loses_nobody(
    world: IpvsWorld, iptables: dict[Family, Iptables]
) -> None:
    world.apply([WEB])

    def iptables_mode() -> None:
        with world.cluster["n1"].entered():
            for family, reconciler in world.reconcilers.items():
                backend = IptablesBackend(family, runner=iptables[family], sysctls=Sysctls())
                backend.sync(
                    SyncRequest(context=world.contexts[family], plans=reconciler.plans, changed={}, full=True)
                )

    with world.cluster["n1"].entered():
        assert list(cleanup(list(iptables.values())))
    iptables_mode()
    seen = Counter(map(str, world.ask("pod3", WEB, count=30)))
    assert len(seen) == 3, seen
    with TrafficGenerator(
        world.cluster, [world.probe("pod3", WEB, "cluster", 4), world.probe("client", WEB, "lb", 6)]
    ) as traffic:
        world.apply([WEB], full=True)
    assert traffic.made
    assert traffic.failures == [], traffic.failures[:5]
    assert "10.96.1.1:80" in world.in_node("ipvsadm", "-Sn")
    iptables_mode()
    with world.cluster["n1"].entered():
        assert list(cleanup(list(iptables.values()), mode_named("iptables").chains))
    assert world.in_node("ipvsadm", "-Sn") == world.in_node("ipset", "save") == ""
    rules = world.in_node(SAVE[Family.IPV4])
    assert "KUBE-IPVS-FILTER" not in rules
    assert "-j KUBE-SERVICES" in rules
    assert world.answerers("client", WEB, count=30) == {"pod1", "pod2", "pod4"}
    with world.cluster["n1"].entered():
        assert list(
            iptables_cleanup.cleanup(list(iptables.values()), CleanupContext(Sysctls(), tuple(Family)))
        )
