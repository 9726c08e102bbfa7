from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factory import packed, service

from pointsman.model.addresses import Family
from pointsman.model.findings import Code
from pointsman.model.objects import Service, ServiceStatus
from pointsman.model.service import FlowTimeouts, Protocol, ServicePort, ServicePortName
from pointsman.model.service_parsing import MAX_FRONTENDS, find_skip_reason, parse_service_ports


def only_port(made: Service, family: Family = Family.IPV4, **options: Any) -> ServicePort:
    ports, findings, _ = parse_service_ports(made, family, **options)
    assert findings == []
    (port,) = ports.values()
    return port


def reasons(made: Service, family: Family = Family.IPV4) -> list[str]:
    return [finding.code.value for finding in parse_service_ports(made, family)[1]]


def test_a_plain_cluster_ip_service() -> None:
    port = only_port(service())
    assert port.name == ServicePortName("default", "web", "http", Protocol.TCP)
    assert str(port.name) == "default/web:http"
    assert (port.cluster_ip, port.port) == (packed("10.96.0.10"), 80)
    assert not port.externally_accessible
    assert port.uses_cluster_endpoints
    assert not port.uses_local_endpoints


def test_an_unnamed_port_prints_without_colon() -> None:
    port = only_port(service(ports=[{"port": 80}]))
    assert str(port.name) == "default/web"
    assert port.protocol is Protocol.TCP


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (service(clusterIP="None"), Code.HEADLESS),
        (service(clusterIP=""), Code.NO_CLUSTER_IP),
        (service(type="ExternalName"), Code.EXTERNAL_NAME),
        (
            service(metadata={"labels": {"service.kubernetes.io/service-proxy-name": "x"}}),
            Code.OTHER_PROXY,
        ),
    ],
)
def test_services_that_are_not_ours_are_skipped(made: Service, reason: Code) -> None:
    assert find_skip_reason(made) is reason
    assert parse_service_ports(made, Family.IPV4)[:2] == ({}, [])


def test_each_family_gets_its_own_cluster_ip() -> None:
    dual = service(clusterIP="fd00::a", clusterIPs=["fd00::a", "10.96.0.9"])
    assert only_port(dual, Family.IPV4).cluster_ip == packed("10.96.0.9")
    assert only_port(dual, Family.IPV6).cluster_ip == packed("fd00::a")
    assert parse_service_ports(service(), Family.IPV6)[:2] == ({}, [])


def test_external_and_balancer_addresses_are_split_by_family() -> None:
    made = service(
        type="LoadBalancer",
        externalIPs=["198.51.100.1", "2001:db8::1"],
        status={
            "loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"ip": "2001:db8::2"}, {"hostname": "x"}]}
        },
    )
    port = only_port(made)
    assert port.external_ips == (packed("198.51.100.1"),)
    assert port.load_balancer_ips == (packed("203.0.113.1"),)


def test_the_gate_switches_external_ips_off() -> None:
    made = service(externalIPs=["198.51.100.1"])
    assert only_port(made, allow_external_ips=False).external_ips == ()


def test_ip_mode_proxy_is_not_served_and_vip_is() -> None:
    ingress = [{"ip": "203.0.113.1", "ipMode": "Proxy"}, {"ip": "203.0.113.2", "ipMode": "VIP"}]
    port = only_port(service(type="LoadBalancer", status={"loadBalancer": {"ingress": ingress}}))
    assert port.load_balancer_ips == (packed("203.0.113.2"),)


def test_a_status_counts_whatever_the_type() -> None:
    port = only_port(service(type="NodePort", status={"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}))
    assert port.load_balancer_ips == (packed("203.0.113.1"),)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (["10.0.0.0/8", " 192.0.2.0/24\t"], ["10.0.0.0/8", "192.0.2.0/24"]),
        (["10.0.0.0/8", "0.0.0.0/0"], []),
        (["fd00::/8"], []),
        (["10.1.2.3/8"], ["10.0.0.0/8"]),
    ],
)
def test_source_ranges(ranges: list[str], expected: list[str]) -> None:
    port = only_port(service(loadBalancerSourceRanges=ranges))
    assert [str(cidr) for cidr in port.service.source_ranges.cidrs] == expected


@pytest.mark.parametrize(
    ("value", "everywhere", "reasons"),
    [
        ("all", True, []),
        ("load-balancer", False, []),
        ("ALL", True, ["BadAnnotation"]),
        ("", True, ["BadAnnotation"]),
    ],
)
def test_source_ranges_may_be_asked_for_everywhere_and_a_typing_error_asks_for_it(
    value: str, everywhere: bool, reasons: list[str]
) -> None:
    asking = service(metadata={"annotations": {"pointsman.dev/source-ranges": value}})
    ports, findings, _ = parse_service_ports(asking, Family.IPV4)
    assert [port.service.source_ranges.all_frontends for port in ports.values()] == [everywhere]
    assert [finding.code.value for finding in findings] == reasons


@pytest.mark.parametrize(
    ("annotations", "protocol", "keeps", "reasons"),
    [
        ({}, "UDP", False, []),
        ({"pointsman.dev/udp-draining": "keep"}, "UDP", True, []),
        ({"pointsman.dev/udp-draining": "keep"}, "TCP", False, []),
        ({"pointsman.dev/udp-draining": "true"}, "UDP", False, ["BadAnnotation"]),
    ],
)
def test_only_udp_flows_can_be_kept_on_terminating_endpoints(
    annotations: dict[str, str], protocol: str, keeps: bool, reasons: list[str]
) -> None:
    asking = service(metadata={"annotations": annotations}, ports=[{"port": 53, "protocol": protocol}])
    ports, findings, _ = parse_service_ports(asking, Family.IPV4)
    assert [port.keeps_draining for port in ports.values()] == [keeps]
    assert [finding.code.value for finding in findings] == reasons


@pytest.mark.parametrize(
    ("annotations", "timeouts", "reasons"),
    [
        ({}, (0, 0), []),
        ({"udp-timeout": "5s"}, (5, 0), []),
        ({"udp-timeout": "2m", "tcp-established-timeout": "2h"}, (120, 7200), []),
        ({"udp-timeout": "1h", "tcp-established-timeout": "120h"}, (3600, 432000), []),
        ({"udp-timeout": "2h", "tcp-established-timeout": "121h"}, (0, 0), ["BadAnnotation"] * 2),
        ({"udp-timeout": "0s"}, (0, 0), ["BadAnnotation"]),
        ({"udp-timeout": "5"}, (0, 0), ["BadAnnotation"]),
    ],
)
def test_timeouts_of_flows_are_bounded(
    annotations: dict[str, str], timeouts: tuple[int, int], reasons: list[str]
) -> None:
    named = {f"pointsman.dev/{name}": value for name, value in annotations.items()}
    ports, findings, _ = parse_service_ports(service(metadata={"annotations": named}), Family.IPV4)
    (port,) = ports.values()
    assert port.service.flow_timeouts == FlowTimeouts(*timeouts)
    assert [finding.code.value for finding in findings] == reasons


@pytest.mark.parametrize("value", ["fastest", "rr; rm -rf /"])
def test_an_unknown_ipvs_scheduler_is_ignored_so_that_the_kernel_looks_for_no_such_module(value: str) -> None:
    asking = service(metadata={"annotations": {"pointsman.dev/ipvs-scheduler": value}})
    ports, findings, _ = parse_service_ports(asking, Family.IPV4)
    assert [port.service.ipvs_scheduler for port in ports.values()] == [""]
    assert [finding.code for finding in findings] == [Code.BAD_ANNOTATION]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (["fd00::/8"], True),
        (["fd00::/8", "2001:db8::/32"], True),
        (["fd00::/8", "10.0.0.0/8"], False),
        (["::/0"], False),
        (["fd00::/8", "garbage"], False),
        ([], False),
        (None, False),
    ],
)
def test_ranges_that_keep_out_clients_of_the_other_family_only_are_told_apart(
    ranges: list[str] | None, expected: bool
) -> None:
    ports, _, _ = parse_service_ports(service(loadBalancerSourceRanges=ranges), Family.IPV4)
    assert [port.service.source_ranges.other_family_only for port in ports.values()] == [expected]


@pytest.mark.parametrize(
    "bad", ["garbage", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0", "", "10.0.0.0/8/8", "300.0.0.0/8"]
)
def test_source_ranges_that_cannot_be_read_let_nobody_in(bad: str) -> None:
    """kube-proxy leaves such ranges out, and with the last one the whole restriction."""
    for ranges, admitted in (
        ([bad], "0.0.0.0/32"),
        ([bad, "fd00::/8"], "0.0.0.0/32"),
        ([bad, "192.0.2.0/24"], "192.0.2.0/24"),
    ):
        ports, findings, _ = parse_service_ports(service(loadBalancerSourceRanges=ranges), Family.IPV4)
        assert [str(cidr) for port in ports.values() for cidr in port.service.source_ranges.cidrs] == [
            admitted
        ]
        assert [finding.code.value for finding in findings] == ["BadSourceRange"]


def test_affinity_timeout_default_and_given() -> None:
    assert only_port(service()).service.affinity_seconds == 0
    assert only_port(service(sessionAffinity="ClientIP")).service.affinity_seconds == 10800
    given_timeout = {"clientIP": {"timeoutSeconds": 300}}
    assert (
        only_port(
            service(sessionAffinity="ClientIP", sessionAffinityConfig=given_timeout)
        ).service.affinity_seconds
        == 300
    )


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (service(clusterIP="10.96.0.300"), "BadClusterIP"),
        (service(clusterIP="127.0.0.1"), "ForbiddenClusterIP"),
        (service(externalIPs=["nonsense"]), "BadAddress"),
        (service(externalIPs=["169.254.169.254"]), "ForbiddenAddress"),
        (service(externalIPs=[""]), "BadAddress"),
        (service(ports=[{"port": 80, "protocol": "ICMP"}]), "BadProtocol"),
        (service(ports=[{"port": 70000}]), "BadPort"),
        (service(loadBalancerSourceRanges=["10.0.0.0"]), "BadSourceRange"),
    ],
)
def test_bad_content_is_left_out_and_named(made: Service, reason: str) -> None:
    assert reasons(made) == [reason]


def test_a_bad_port_does_not_harm_the_other() -> None:
    ports, findings, _ = parse_service_ports(
        service(ports=[{"name": "a", "port": 0}, {"name": "b", "port": 81}]), Family.IPV4
    )
    assert [name.port for name in ports] == ["b"]
    assert len(findings) == 1


def test_policies_decide_which_endpoints_are_needed() -> None:
    local = only_port(service(internalTrafficPolicy="Local"))
    assert (local.uses_cluster_endpoints, local.uses_local_endpoints) == (False, True)
    external = only_port(
        service(type="NodePort", externalTrafficPolicy="Local", ports=[{"port": 80, "nodePort": 30080}])
    )
    assert (external.uses_cluster_endpoints, external.uses_local_endpoints) == (True, True)


def test_a_null_in_the_json_is_absence() -> None:
    raw = b'{"metadata":{"name":"a","namespace":"b","creationTimestamp":null},"spec":{"clusterIP":"10.96.0.1","ports":null}}'
    assert parse_service_ports(msgspec.json.decode(raw, type=Service), Family.IPV4)[:2] == ({}, [])


_text = st.text(max_size=20)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "clusterIP": _text | st.just("10.96.0.1"),
            "clusterIPs": st.lists(_text, max_size=3),
            "externalIPs": st.lists(_text, max_size=3),
            "loadBalancerSourceRanges": st.lists(_text, max_size=3),
            "type": _text,
            "sessionAffinity": _text | st.just("ClientIP"),
            "ports": st.lists(
                st.fixed_dictionaries(
                    {"port": st.integers()}, optional={"protocol": _text, "nodePort": st.integers()}
                ),
                max_size=3,
            ),
        },
    )
)
def test_no_content_raises(spec: dict[str, Any]) -> None:
    for family in Family:
        parse_service_ports(service(**spec), family)


@pytest.mark.parametrize(("asked", "granted"), [(0, 1), (-5, 1), (86401, 86400), (2**63 - 1, 86400)])
def test_an_affinity_timeout_no_kernel_can_keep_is_cut_and_reported(asked: int, granted: int) -> None:
    config = {"clientIP": {"timeoutSeconds": asked}}
    made = service(sessionAffinity="ClientIP", sessionAffinityConfig=config)
    (port,) = parse_service_ports(made, Family.IPV4)[0].values()
    assert port.service.affinity_seconds == granted
    assert reasons(made) == ["BadAffinityTimeout"]


@pytest.mark.parametrize("number", [-1, 65536, 2**40])
def test_a_health_check_port_that_is_none_is_left_out_and_reported(number: int) -> None:
    made = service(type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=number)
    (port,) = parse_service_ports(made, Family.IPV4)[0].values()
    assert port.service.health_check_node_port == 0
    assert reasons(made) == ["BadPort"]


def test_ports_that_differ_in_their_protocol_only_have_an_order() -> None:
    tcp, udp, sctp = (ServicePortName("ns", "dns", "dns", protocol) for protocol in Protocol)
    assert sorted([sctp, udp, tcp]) == [tcp, udp, sctp]


def test_findings_with_different_parameters_have_different_hashes() -> None:
    made = service(externalIPs=[f"225.0.{n // 256}.{n % 256}" for n in range(512)])
    findings = parse_service_ports(made, Family.IPV4).findings
    assert len({hash(finding) for finding in findings}) == len(findings)


def test_ports_times_addresses_are_limited_and_the_rest_is_named() -> None:
    ports = [{"name": f"p{number}", "port": number} for number in range(1, 1001)]
    balancer = {"loadBalancer": {"ingress": [{"ip": f"198.51.100.{number}"} for number in range(1, 41)]}}
    made = msgspec.structs.replace(
        service(ports=ports, externalIPs=[f"192.0.2.{number}" for number in range(1, 101)]),
        status=msgspec.convert(balancer, ServiceStatus),
    )
    found, findings, _ = parse_service_ports(made, Family.IPV4)
    assert sum(port.frontend_count for port in found.values()) <= MAX_FRONTENDS
    port = next(iter(found.values()))
    assert (len(port.load_balancer_ips), len(port.external_ips)) == (40, 8)
    assert [(one.code.value, dict(one.parameters)) for one in findings] == [
        ("TooManyFrontends", {"limit": 48, "addresses": 140, "ports": 1000})
    ]
    assert port.external_ips == tuple(packed(f"192.0.2.{number}") for number in range(1, 9))


def test_however_many_ports_a_load_balancer_address_is_served() -> None:
    ports = [{"name": f"p{number}", "port": number} for number in range(1, 20_001)]
    made = service(ports=ports, externalIPs=["192.0.2.1"])
    assert next(iter(parse_service_ports(made, Family.IPV4).ports.values())).external_ips
    assert reasons(made) == []
