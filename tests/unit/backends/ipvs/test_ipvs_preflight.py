"""Schedulers, sysctls and what is said when something is missing."""

from __future__ import annotations

import pytest
from tests.factory import packed, plan, service_port

from pointsman.backends.contract import Setup
from pointsman.backends.ipvs.apply import describe_missing
from pointsman.backends.ipvs.check import diff_keys, diff_servers
from pointsman.backends.ipvs.compile import ADDRESS, SERVER, Choice, Schedulers, ServerRow
from pointsman.backends.ipvs.mode import compute_sysctls, preflight
from pointsman.backends.ipvs.steps import Draining, KernelState
from pointsman.backends.ledger import Ledger, Row
from pointsman.config.types import IPVirtualServer, KubeProxyConfiguration
from pointsman.kernel.ipvs_objects import RealKey, SetEntry, VirtualKey, VirtualServer
from pointsman.kernel.sysctl import parse_kernel_version
from pointsman.model.addresses import Family
from pointsman.model.service import Protocol, ServicePortName


@pytest.mark.parametrize(
    ("release", "reuse"),
    [("4.0.9", None), ("4.1.0", 0), ("5.8.18-generic", 0), ("5.9.0", None), ("6.18.1", None)],
)
def test_port_reuse_is_touched_only_on_kernels_that_need_it(release: str, reuse: int | None) -> None:
    assert compute_sysctls(release, strict_arp=False).get("net/ipv4/vs/conn_reuse_mode") == reuse


def test_arp_is_touched_only_when_asked_for() -> None:
    strict = compute_sysctls("6.1.0", strict_arp=True)
    assert strict["net/ipv4/conf/all/arp_ignore"] == 1
    assert strict["net/ipv4/conf/all/arp_announce"] == 2
    assert compute_sysctls("6.1.0", strict_arp=False).keys() == {
        "net/ipv4/vs/conntrack",
        "net/ipv4/vs/expire_nodest_conn",
        "net/ipv4/vs/expire_quiescent_template",
        "net/ipv4/ip_forward",
    }


def test_a_strange_kernel_release_is_old() -> None:
    assert parse_kernel_version("6.18.5-cloud") == (6, 18)
    assert parse_kernel_version("unknown") == (0, 0)


def test_an_unknown_scheduler_names_the_known_ones() -> None:
    config = KubeProxyConfiguration(ipvs=IPVirtualServer(scheduler="bogus"))
    (problem,) = preflight(Setup(config), Family.IPV4)
    assert problem.startswith("ipvs.scheduler 'bogus' is unknown; use one of dh, fo, lblc")


def test_a_service_gets_the_scheduler_it_requests_or_the_default_and_a_condition() -> None:
    plans = [plan(service_port(ipvs_scheduler=word)) for word in ("", "rr", "lc", "sed", "lc")]
    asked: list[str] = []

    def has_scheduler(name: str) -> bool:
        asked.append(name)
        return name != "sed"

    schedulers = Schedulers("rr").probe(plans, has_scheduler)
    assert sorted(asked) == ["lc", "sed"]
    assert list(map(schedulers.choose, plans)) == [Choice(name) for name in ("rr", "rr", "lc", "rr", "lc")]
    (condition,) = describe_missing(schedulers)
    assert (condition.type, condition.reason) == ("KernelFeatures", "SchedulerMissing")
    assert condition.text.endswith("that Services request: sed; using rr: modprobe -a ip_vs_sed")
    assert schedulers.probe(plans, pytest.fail) == schedulers


def test_verification_names_every_kind_of_difference() -> None:
    one, two = RealKey(packed("10.244.0.1"), 8080), RealKey(packed("10.244.0.2"), 8080)
    name = ServicePortName("default", "web", "http", Protocol.TCP)
    address = packed("10.96.0.1")
    key = VirtualKey(6, address, 80)
    rows = (
        Row(name, SERVER, key, ServerRow(VirtualServer(key, "rr"), {one: 1})),
        Row(name, "KUBE-CLUSTER-IP", SetEntry(address, 6, 80)),
        Row(name, "KUBE-IPVS-IPS", SetEntry(address)),
        Row(name, ADDRESS, address),
    )
    desired, found = Ledger({name: rows}), KernelState(("KUBE-CLUSTER-IP", "KUBE-IPVS-IPS"))
    foreign, excluded = VirtualKey(6, packed("10.96.9.9"), 80), VirtualKey(6, packed("192.0.2.1"), 80)

    def servers() -> list[tuple[str, str, str, ServicePortName | None]]:
        differences = diff_servers(desired, found, Draining(1), lambda k: k == excluded)
        return [(d.what, d.want, d.have, d.owner) for d in differences]

    assert servers() == [("virtual server tcp 10.96.0.1:80", "scheduler rr, flags 0x0", "", name)]
    found.servers = {
        key: VirtualServer(key, "lc"),
        foreign: VirtualServer(foreign, "rr"),
        excluded: VirtualServer(excluded, "rr"),
    }
    found.weights = {key: {one: 0, two: 1}}
    assert servers() == [
        (
            "virtual server tcp 10.96.0.1:80",
            "scheduler rr, flags 0x0",
            "scheduler lc, flags 0x0",
            name,
        ),
        ("real server 10.244.0.1:8080 of tcp 10.96.0.1:80", "weight 1", "weight 0", name),
        ("real server 10.244.0.2:8080 of tcp 10.96.0.1:80", "", "weight 1", name),
        ("virtual server tcp 10.96.9.9:80", "", "scheduler rr, flags 0x0", None),
    ]
    found.keys |= {ADDRESS: {packed("10.9.9.9")}, "KUBE-CLUSTER-IP": {SetEntry(packed("10.0.0.9"), 6, 80)}}
    assert [(d.what, d.want, d.have, d.owner) for d in diff_keys(desired, found)] == [
        ("address on kube-ipvs0", "10.96.0.1", "", name),
        ("address on kube-ipvs0", "", "10.9.9.9", None),
        ("ipset KUBE-CLUSTER-IP", "10.96.0.1,tcp:80", "", name),
        ("ipset KUBE-CLUSTER-IP", "", "10.0.0.9,tcp:80", None),
        ("ipset KUBE-IPVS-IPS", "10.96.0.1", "", name),
    ]
