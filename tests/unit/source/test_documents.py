"""Manifest text in all the shapes people write it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.kube_objects import endpoint_slice, node, service, service_cidr

from pointsman.model.objects import KubeObject, Service
from pointsman.source.admission import Admitted, Refused, admit
from pointsman.source.documents import parse
from pointsman.wording.findings import render_finding


def objects_and_problems(data: bytes, name: str) -> tuple[list[KubeObject], list[str]]:
    parsed = parse(data, name)
    return parsed.objects, [render_finding(finding) for finding in parsed.findings]


YAML = b"""\
# a whole application
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  creationTimestamp: 2026-11-15T18:31:30Z
spec:
  clusterIP: 10.96.0.10
  ports:
  - {port: 80, targetPort: http}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
---
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- addresses: [10.1.0.1]
"""


def test_several_yaml_documents_with_unrelated_kinds_between() -> None:
    objects, problems = objects_and_problems(YAML, "app.yaml")
    assert problems == []
    assert [item.metadata.key for item in objects] == ["shop/web", "shop/web-1"]
    assert objects[0].metadata.creation_timestamp == "2026-11-15T18:31:30Z"


@pytest.mark.parametrize("kind", ["List", "ServiceList"])
def test_lists_are_flattened_and_may_leave_out_the_kind_of_their_items(kind: str) -> None:
    items = [service("a"), service("b")]
    if kind == "ServiceList":
        for item in items:
            del item["kind"], item["apiVersion"]
    document = {"apiVersion": "v1", "kind": kind, "items": items}
    objects, problems = objects_and_problems(json.dumps(document).encode(), "all.json")
    assert problems == []
    assert [item.metadata.name for item in objects] == ["a", "b"]


def test_all_four_kinds() -> None:
    items = [
        node("n1"),
        service_cidr("kubernetes", "10.96.0.0/12"),
        service("web"),
        endpoint_slice("web-1", "10.1.0.1"),
    ]
    objects, problems = objects_and_problems(
        json.dumps({"kind": "List", "items": items}).encode(), "all.json"
    )
    assert problems == []
    assert [type(item).__name__ for item in objects] == ["Node", "ServiceCIDR", "Service", "EndpointSlice"]


def test_several_json_documents_one_after_the_other() -> None:
    data = "\n---\n".join(json.dumps(service(name)) for name in "ab")
    assert len(objects_and_problems(data.encode(), "two.json")[0]) == 2


def test_problems_name_file_document_item_object_and_field() -> None:
    good, bad = (
        json.dumps(service("a")),
        json.dumps({"kind": "List", "items": [service("b"), service("c", "nonsense")]}),
    )
    objects, problems = objects_and_problems(f"{good}\n---\n{bad}".encode(), "two.yaml")
    assert [item.metadata.name for item in objects] == ["a", "b"]
    where = "two.yaml: document 2: items[1]: Service default/c"
    assert problems == [f"{where}: spec.clusterIPs[0]: 'nonsense' is not an IP address"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"kind: Service: v1", "f: line 1: "),
        (b"\x00\x01\xff", "f: "),
        (b"just words", "f: not a Kubernetes object"),
        (b"- a\n- b\n", "f: not a Kubernetes object"),
        (b"metadata: {name: x}", "f: kind: required"),
        (b"kind: 5", "f: kind: required"),
        (b"kind: Service\nmetadata: {name: x}", "f: Service default/x: apiVersion: ''"),
        (b"kind: Service\napiVersion: v2\nmetadata: {name: x}", "apiVersion: 'v2': use v1"),
        (
            b"kind: EndpointSlice\napiVersion: discovery.k8s.io/v1beta1\nmetadata: {name: x}",
            "use discovery.k8s.io/v1",
        ),
        (
            b"kind: Service\napiVersion: v1\nmetadata: [x]",
            "f: Service (unnamed): metadata: Expected `object`",
        ),
        (
            b"kind: Service\napiVersion: v1\nmetadata: {name: x, labels: {a: 1}}",
            "metadata.labels[...]: Expected `str`",
        ),
        (
            b"kind: Service\napiVersion: v1\nmetadata: {name: x}\nspec: {ports: {port: 1}}",
            "spec.ports: Expected",
        ),
        (b"{" * 20_000, "f: "),
        (b'{"kind": "Service", "metadata": {"name": "\xff"}}', "f: invalid"),
        (b"[" * 100_000, "f: nested too deeply"),
        (b"- " * 100_000, "f: nested too deeply"),
        (b"\n".join(b" " * depth + b"a:" for depth in range(2000)), "f: nested too deeply"),
    ],
)
def test_unusable_text_is_reported(data: bytes, message: str) -> None:
    objects, problems = objects_and_problems(data, "f")
    assert objects == []
    assert message in problems[0]


def test_service_of_another_api_group_is_none_of_our_business() -> None:
    data = b"kind: Service\napiVersion: serving.knative.dev/v1\nmetadata: {name: x}"
    assert objects_and_problems(data, "f") == ([], [])


@pytest.mark.parametrize("data", [b"", b"---\n---\n", b"# nothing\n", b"kind: List\nitems:\n"])
def test_emptiness_is_fine(data: bytes) -> None:
    assert objects_and_problems(data, "f") == ([], [])


@given(st.binary(max_size=200))
def test_no_bytes_can_crash_it(data: bytes) -> None:
    objects, problems = objects_and_problems(data, "f")
    assert all(problem.startswith("f") for problem in problems)
    assert objects == []


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["spec", "metadata", "status"]), _json)
def test_no_content_of_a_field_can_crash_it(field: str, value: object) -> None:
    document = service("web")
    document[field] = value
    objects, problems = objects_and_problems(json.dumps(document).encode(), "f")
    assert bool(objects) or bool(problems)
    assert all(isinstance(item, Service) for item in objects)


HUGE = "0x" + "F" * 5000


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("apiVersion: v1", "apiVersion: "),
        ("namespace: shop", "metadata.namespace: "),
        ("port: 80", "spec.ports[0].port: "),
        ("timeoutSeconds: 5", "clientIP.timeoutSeconds: "),
    ],
)
@pytest.mark.parametrize("number", [HUGE, "9" * 5000, "-" + "9" * 30, ":".join(["59"] * 5000)])
def test_a_number_beyond_all_fields_spoils_its_object_only(field: str, problem: str, number: str) -> None:
    bad = """\
apiVersion: v1
kind: Service
metadata: {name: bad, namespace: shop}
spec:
  clusterIP: 10.96.0.11
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}
  ports: [{port: 80}]
"""
    assert field in bad
    text = bad.replace(field, f"{field.partition(':')[0]}: {number}").encode() + b"---\n" + YAML
    objects, problems = objects_and_problems(text, "app.yaml")
    assert [item.metadata.key for item in objects] == ["shop/web", "shop/web-1"]
    (told,) = problems
    assert problem in told


def test_a_bug_of_ours_that_one_object_meets_spares_the_others() -> None:
    def admission(item: KubeObject) -> Admitted | Refused:
        if isinstance(item, Service):
            raise ZeroDivisionError
        return admit(item)

    parsed = parse(YAML, "app.yaml", admission)
    assert [item.metadata.key for item in parsed.objects] == ["shop/web-1"]
    assert [render_finding(found) for found in parsed.findings] == [
        "app.yaml: document 1: cannot be read: ZeroDivisionError"
    ]
