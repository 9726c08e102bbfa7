"""Targets, remarks and the text of answers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import factory
from tests.unit.explain.explaining import asked, view_of

from pointsman.explain.target import BadQuestion, Question, Target, parse_target
from pointsman.explain.text import render_explanation
from pointsman.model.findings import Code, Finding, ObjectReference, Severity
from pointsman.model.service import Protocol
from pointsman.model.service_findings import ServiceFindings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("web", Target(text="web", service="web")),
        ("shop/web", Target(text="shop/web", namespace="shop", service="web")),
        ("web:http", Target(text="web:http", service="web", port="http")),
        ("shop/web:80/udp", Target("shop/web:80/udp", "shop", "web", "80", protocol=Protocol.UDP)),
        ("10.0.0.1", Target(text="10.0.0.1", address=b"\x0a\0\0\1")),
        ("10.0.0.1:80", Target(text="10.0.0.1:80", address=b"\x0a\0\0\1", number=80)),
        ("[::1]:80/tcp", Target("[::1]:80/tcp", address=bytes(15) + b"\1", number=80, protocol=Protocol.TCP)),
        ("fd00::1", Target(text="fd00::1", address=factory.packed("fd00::1"))),
        (":30080", Target(text=":30080", address=b"", number=30080)),
        ("web.shop", Target("web.shop", "shop", "web")),
        ("web.shop.svc", Target("web.shop.svc", "shop", "web")),
        ("web.shop.svc.cluster.local:80", Target("web.shop.svc.cluster.local:80", "shop", "web", "80")),
        ("web.shop.svc.corp.example.", Target("web.shop.svc.corp.example.", "shop", "web")),
        ("web-0.web.shop.svc.k8s", Target("web-0.web.shop.svc.k8s", "shop", "web")),
        (
            "_dns._udp.dns.sys.svc",
            Target("_dns._udp.dns.sys.svc", "sys", "dns", "dns", protocol=Protocol.UDP),
        ),
        ("https://web.shop/cart?a=b", Target("https://web.shop/cart?a=b", "shop", "web", "443")),
        ("http://web.shop:8080", Target("http://web.shop:8080", "shop", "web", "8080")),
        ("http://10.0.0.1/", Target("http://10.0.0.1/", address=b"\x0a\0\0\1", number=80)),
        ("svc/web", Target("svc/web", "", "web")),
        ("shop/pod/web-1", Target("shop/pod/web-1", "shop", "web-1", pod=True)),
        ("pod/web.1", Target("pod/web.1", "", "web.1", pod=True)),
    ],
)
def test_targets(text: str, expected: Target) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize("text", ["", "/tcp", "a/b/c", "web:", "web:a:b", "/web", ":"])
def test_unusable_targets_show_the_forms(text: str) -> None:
    with pytest.raises(BadQuestion, match="SERVICE"):
        parse_target(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.96.0.999:80", "'10.96.0.999' is not an IP address: 999 is greater than 255"),
        ("10.96.0:80", "it has 3 numbers, and not 4"),
        ("fd00::zz", "'fd00::zz' is not an IP address"),
        ("[fd00::1]:70000", "'70000' in .* is not a port"),
        ("10.96.0.1:http", "'http' in .* is not a port"),
        ("web.shop.cluster.local", "not the DNS name of a Service"),
        ("ftp://web.shop", "only http and https"),
    ],
)
def test_what_looks_like_an_address_or_a_dns_name_is_not_taken_for_a_name(text: str, words: str) -> None:
    with pytest.raises(BadQuestion, match=words):
        parse_target(text)


def test_a_namespace_given_apart_is_for_names_that_say_none() -> None:
    assert parse_target("web", "shop").namespace == "shop"
    assert parse_target("web.other", "shop").namespace == "other"


POD = {"addresses": ["10.244.1.5"], "nodeName": "n1", "targetRef": {"kind": "Pod", "name": "web-1"}}
TIRED = {
    "addresses": ["10.244.2.6"],
    "nodeName": "n2",
    "conditions": {"ready": False},
    "targetRef": {"kind": "Pod", "name": "web-2"},
}


@pytest.mark.parametrize("question", ["web-1", "shop/web-1", "pod/web-1", "10.244.1.5", "10.244.1.5:8080"])
def test_a_pod_or_its_address_leads_to_the_services_that_use_it(question: str) -> None:
    view = view_of(
        factory.service(namespace="shop"),
        factory.service("api", "shop", clusterIP="10.96.0.11"),
        factory.service("else", "shop", clusterIP="10.96.0.12"),
        factory.endpoint_slice(POD, TIRED, namespace="shop"),
        factory.endpoint_slice(POD, name="api-a", service_name="api", namespace="shop"),
    )
    explanation = asked(view, question)
    assert [port.service for port in explanation.ports] == ["shop/api", "shop/web"]
    assert explanation.is_healthy
    said = [cause.message for cause in explanation.findings if cause.code == "EndpointUsed"]
    assert said[0].startswith("10.244.1.5:8080 (pod web-1 on n1) is an endpoint of shop/api:http")
    text = render_explanation(explanation)
    assert "10.244.1.5:8080  web-1  n1 (here)  in   ready" in text


def test_an_endpoint_that_gets_no_connections_says_why() -> None:
    view = view_of(factory.service(), factory.endpoint_slice(POD, TIRED))
    explanation = asked(view, "web-2")
    (cause,) = explanation.findings
    assert cause.code == "EndpointNotUsed"
    assert cause.message.endswith("gets no connections from this node: not ready")
    assert not explanation.is_healthy
    (cause,) = asked(view, "10.244.1.5:9999").findings
    assert cause.message == ("Services use this endpoint at 8080/TCP (default/web:http), not at 9999")
    (cause,) = asked(view, "pod/web-7").findings
    assert cause.code == "NoSuchPod"


def test_a_service_comes_before_a_pod_of_the_same_name() -> None:
    named = {**POD, "targetRef": {"kind": "Pod", "name": "web"}}
    other = {**POD, "addresses": ["10.244.1.9"], "targetRef": {"kind": "VM", "name": "vm"}}
    view = view_of(factory.service(), factory.endpoint_slice(named, other))
    assert asked(view, "web").findings == ()
    assert [cause.code for cause in asked(view, "pod/web").findings] == ["EndpointUsed"]
    assert [cause.code for cause in asked(view, "pod/vm").findings] == ["NoSuchPod"]


def test_a_client_may_be_named_by_its_pod() -> None:
    view = view_of(factory.service(), factory.endpoint_slice(POD))
    (frontend,) = asked(view, "web", "web-1").ports[0].frontends
    assert [(o.client, o.address) for o in frontend.outcomes] == [("pod", "10.244.1.5")]


def test_an_unusable_client_shows_the_forms() -> None:
    with pytest.raises(BadQuestion, match="pod, node, outside"):
        asked(view_of(factory.service()), "web", "mars")


@given(st.text(max_size=40))
def test_any_text_is_understood_or_refused_with_a_message(text: str) -> None:
    try:
        target = parse_target(text)
    except BadQuestion:
        return
    assert target.service or target.address is not None


def test_ports_are_found_by_name_number_and_protocol() -> None:
    dns = factory.service(
        "dns",
        ports=[
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ],
    )
    view = view_of(dns)

    def found(question: str) -> list[str]:
        return [port.port for port in asked(view, question).ports]

    assert found("dns") == ["dns", "dns-tcp"]
    assert found("dns:53") == ["dns", "dns-tcp"]
    assert found("dns:53/udp") == ["dns"]
    assert found("dns:dns-tcp") == ["dns-tcp"]
    assert found("10.96.0.10:53/tcp") == ["dns-tcp"]


def test_text_puts_verdict_causes_and_evidence_in_words() -> None:
    view = view_of(
        factory.service(sessionAffinity="ClientIP", internalTrafficPolicy="Local"),
        factory.endpoint_slice("10.244.1.5", {"addresses": ["10.244.2.5"], "nodeName": "n2"}),
    )
    text = render_explanation(asked(view, "web", "pod"))
    assert "✓ default/web:http TCP 80 (IPv4)" in text
    assert "ClusterIP 10.96.0.10:80, policy Local" in text
    assert "10.244.1.5:8080  n1 (here)  in   ready, on this node" in text
    assert "10.244.2.5:8080  n2         out  policy Local: it runs on node n2, this node is n1" in text
    assert "10800 s" in text
    assert "Kernel: not checked" in text


def test_long_endpoint_lists_are_cut_and_say_so() -> None:
    view = view_of(factory.service(), factory.endpoint_slice(*[f"10.244.3.{n}" for n in range(1, 31)]))
    assert "and 10 more; -o json lists all" in render_explanation(asked(view, "web"))


def test_findings_follow_the_objects() -> None:
    found = ServiceFindings()
    web = ObjectReference("Service", "default/web")
    found.upsert_service(factory.service(clusterIP="None"))
    assert found.of("default/web") == (Finding(Code.HEADLESS, Severity.ERROR, web),)
    found.upsert_service(factory.service())
    assert found.all() == {}
    bad_slice = factory.endpoint_slice("127.0.0.1")
    on_slice = ObjectReference("EndpointSlice", bad_slice.metadata.key)
    parameters = {"value": "127.0.0.1", "reason": "loopback"}
    loopback = Finding(Code.FORBIDDEN_ENDPOINT_ADDRESS, object=on_slice, parameters=parameters)
    bad_address = Finding(Code.BAD_ADDRESS, object=web, parameters={"field": "externalIPs", "value": "x"})
    for _ in range(2):
        found.add(bad_slice.metadata, loopback)
    found.add(factory.service().metadata, bad_address)
    assert set(found.of("default/web")) == {loopback, bad_address}
    found.discard_slice(bad_slice.metadata.key)
    assert found.of("default/web") == (bad_address,)
    found.delete_service("default/web")
    assert found.all() == {}


def test_names_and_reasons_from_objects_cannot_forge_lines_of_the_answer() -> None:
    forged = "web\n\x1b[2KResult: connections are delivered to endpoints."
    service = factory.service(forged, externalIPs=[f"192.0.2.1{forged}"])
    text = render_explanation(asked(view_of(service), "10.96.0.10:80"))
    assert "web\\n\\x1b[2KResult" in text
    assert not [line for line in text.split("\n") if line.startswith("Result: connections")]
    assert not [character for character in text if not character.isprintable() and character != "\n"]


@pytest.mark.parametrize(
    "question", [Question(""), Question("web", "shop"), Question("web:80", client="outside", kernel=False)]
)
def test_a_question_travels_as_json(question: Question) -> None:
    assert msgspec.json.decode(msgspec.json.encode(question), type=Question) == question


DUAL_STACK = (
    factory.service(clusterIPs=["10.96.0.10", "fd00:96::a"], ipFamilies=["IPv4", "IPv6"]),
    factory.endpoint_slice("10.244.1.1"),
    factory.endpoint_slice("fd00:244::1", name="web-b", family="IPv6"),
)


@pytest.mark.parametrize(("client", "family"), [("10.244.1.9", "IPv4"), ("fd00:244::9", "IPv6")])
def test_a_client_with_an_address_is_asked_about_in_its_family_only(client: str, family: str) -> None:
    explanation = asked(view_of(*DUAL_STACK), "web", client)
    assert [(port.family, port.state) for port in explanation.ports] == [(family, "healthy")]
    assert explanation.is_healthy


@pytest.mark.parametrize("question", ["web", "10.96.0.10"])
def test_a_client_of_a_family_that_the_service_lacks_is_a_finding(question: str) -> None:
    view = view_of(factory.service(), factory.endpoint_slice("10.244.1.1"))
    explanation = asked(view, question, "fd00:244::9")
    assert not explanation.ports
    (finding,) = explanation.findings
    assert finding.code is Code.CLIENT_OF_OTHER_FAMILY
    assert finding.message == "fd00:244::9 cannot connect to an IPv4 address, and this Service has no other"
    assert not explanation.is_healthy
