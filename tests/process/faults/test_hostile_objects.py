"""Hostile objects harm only themselves: fuzzed into the decoders, the manifests, and a running proxy."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import factory
from tests.harness.api_thread import ApiThread
from tests.harness.assembled import Assembly, assembled
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import LabNode, NodeProcess, needs_root
from tests.harness.pages import split_page

from pointsman.config.types import KubeProxyConfiguration
from pointsman.kube.codec import BadObject, JsonDecoder, StatusObject, Unreadable
from pointsman.kube.formats import decode_status
from pointsman.model.addresses import Family
from pointsman.model.objects import EndpointSlice, KubeObject, Node, Service, ServiceCIDR
from pointsman.source.admission import Admitted, Refused, admit
from pointsman.source.documents import parse

KINDS: tuple[type[KubeObject], ...] = (Service, EndpointSlice, Node, ServiceCIDR)
FUZZ = settings(max_examples=150, database=None)

ADDRESSES = st.sampled_from(
    [
        *("10.96.0.66", "fd00::66", "0.0.0.0", "127.0.0.1", "::1", "::", "169.254.169.254", "224.0.0.1"),
        *("255.255.255.255", "::ffff:10.0.0.1", "fe80::1%eth0", "010.0.0.1", "10.0.0.1/33", "10.0.0", ""),
        *(
            "None",
            "10.96.0.10",
            "x" * 300,
            "10.0.0.1\n-A INPUT -j DROP",
            "`reboot`",
            "1" * 40,
            "\u0661.1.1.1",
        ),
    ]
)
NAMES = st.one_of(
    st.sampled_from(["web", "a/b", "..", '"; drop', "x\ny", "-A", "\u202e", "n" * 500, "{}", "\x00"]),
    st.text(max_size=20),
)
NUMBERS = st.one_of(st.sampled_from([0, -1, 80, 65535, 65536, 2**31, 2**63]), st.integers())
TEXTS = st.one_of(st.sampled_from(["TCP", "UDP", "SCTP", "ICMP", "Local", "Cluster", "ClientIP", ""]), NAMES)
PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), NUMBERS, st.floats(allow_nan=False, allow_infinity=False), TEXTS, ADDRESSES
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what belongs there, sometimes anything."""
    return st.one_of(strategy, strategy, strategy, PLAIN)


METADATA = st.fixed_dictionaries(
    {"name": _maybe(NAMES)},
    optional={
        "namespace": _maybe(NAMES),
        "annotations": _maybe(st.dictionaries(NAMES, TEXTS, max_size=3)),
        "labels": _maybe(
            st.fixed_dictionaries(
                {},
                optional={
                    "kubernetes.io/service-name": NAMES,
                    "endpointslice.kubernetes.io/managed-by": NAMES,
                },
            )
        ),
        "deletionTimestamp": _maybe(TEXTS),
        "resourceVersion": _maybe(TEXTS),
    },
)
SERVICE_PORT = st.fixed_dictionaries(
    {"port": _maybe(NUMBERS)},
    optional={
        "name": _maybe(NAMES),
        "protocol": _maybe(TEXTS),
        "nodePort": _maybe(NUMBERS),
        "targetPort": _maybe(st.one_of(NUMBERS, NAMES)),
        "appProtocol": _maybe(TEXTS),
    },
)
SERVICES = st.fixed_dictionaries(
    {
        "metadata": METADATA,
        "spec": _maybe(
            st.fixed_dictionaries(
                {"clusterIP": _maybe(ADDRESSES), "ports": _maybe(st.lists(SERVICE_PORT, max_size=3))},
                optional={
                    "clusterIPs": _maybe(st.lists(ADDRESSES, max_size=3)),
                    "type": _maybe(
                        st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"])
                    ),
                    "externalIPs": _maybe(st.lists(ADDRESSES, max_size=3)),
                    "loadBalancerSourceRanges": _maybe(st.lists(ADDRESSES, max_size=3)),
                    "sessionAffinity": _maybe(TEXTS),
                    "sessionAffinityConfig": _maybe(
                        st.fixed_dictionaries(
                            {"clientIP": st.fixed_dictionaries({"timeoutSeconds": NUMBERS})}
                        )
                    ),
                    "externalTrafficPolicy": _maybe(TEXTS),
                    "internalTrafficPolicy": _maybe(TEXTS),
                    "healthCheckNodePort": _maybe(NUMBERS),
                    "trafficDistribution": _maybe(TEXTS),
                },
            )
        ),
    },
    optional={
        "status": _maybe(
            st.fixed_dictionaries(
                {
                    "loadBalancer": st.fixed_dictionaries(
                        {"ingress": st.lists(st.fixed_dictionaries({"ip": ADDRESSES}), max_size=2)}
                    )
                }
            )
        )
    },
)
SLICES = st.fixed_dictionaries(
    {"metadata": METADATA, "addressType": _maybe(st.sampled_from(["IPv4", "IPv6", "FQDN"]))},
    optional={
        "ports": _maybe(
            st.lists(
                st.fixed_dictionaries({}, optional={"name": NAMES, "port": NUMBERS, "protocol": TEXTS}),
                max_size=3,
            )
        ),
        "endpoints": _maybe(
            st.lists(
                st.fixed_dictionaries(
                    {"addresses": _maybe(st.lists(ADDRESSES, max_size=3))},
                    optional={
                        "conditions": _maybe(
                            st.fixed_dictionaries({}, optional={"ready": _maybe(st.booleans())})
                        ),
                        "nodeName": _maybe(NAMES),
                        "zone": _maybe(NAMES),
                        "hints": _maybe(st.fixed_dictionaries({"forZones": PLAIN})),
                    },
                ),
                max_size=4,
            )
        ),
    },
)
NODES = st.fixed_dictionaries(
    {"metadata": METADATA},
    optional={
        "spec": _maybe(st.fixed_dictionaries({"podCIDRs": st.lists(ADDRESSES, max_size=2)})),
        "status": _maybe(
            st.fixed_dictionaries(
                {
                    "addresses": st.lists(
                        st.fixed_dictionaries({"type": TEXTS, "address": ADDRESSES}), max_size=3
                    )
                }
            )
        ),
    },
)
RANGES = st.fixed_dictionaries(
    {"metadata": METADATA, "spec": _maybe(st.fixed_dictionaries({"cidrs": st.lists(ADDRESSES, max_size=3)}))}
)
OBJECTS = st.one_of(
    st.tuples(st.just(Service), SERVICES),
    st.tuples(st.just(EndpointSlice), SLICES),
    st.tuples(st.just(Node), NODES),
    st.tuples(st.just(ServiceCIDR), RANGES),
)

DECODERS = {kind: JsonDecoder(kind) for kind in KINDS}


def _bytes(plain: object) -> bytes:
    return json.dumps(plain).encode()


@FUZZ
@given(st.sampled_from(KINDS), PLAIN)
def test_any_json_is_an_object_or_a_named_refusal(kind: type[KubeObject], plain: object) -> None:
    try:
        DECODERS[kind].decode_object(_bytes(plain))
    except Unreadable:
        pytest.fail("well-formed JSON must never end a watch")


NESTS = {
    "closed": b"[" * 100_000 + b"]" * 100_000,
    "open": b'{"a":[' * 50_000,
    "behind escaped quotes": rb'{"\\\"]]]":' + b'[[],{"]":' * 100_000,
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("field", [b"spec", b"unknown"])
def test_json_nested_without_end_is_refused_without_a_crash(nest: bytes, field: bytes) -> None:
    """On a thread with a small stack, which a decoder that recurses would overflow."""
    deep = b'{"metadata":{"name":"deep"},"%s":%s}' % (field, nest)
    refused: list[str] = []

    def decode() -> None:
        for read, data in (
            (DECODERS[Service].decode_event, b'{"type":"ADDED","object":%s}' % deep),
            (DECODERS[Service].decode_page, b'{"items":[%s]}' % deep),
        ):
            try:
                read(data)
            except Unreadable as error:
                refused.append(str(error))
        assert decode_status(deep) == StatusObject()

    previous = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=decode)
        thread.start()
    finally:
        threading.stack_size(previous)
    thread.join()
    assert refused == ["nested too deeply"] * 2


@FUZZ
@given(st.lists(OBJECTS, max_size=6))
def test_one_good_object_in_a_page_of_bad_ones_is_found(objects: list[tuple[type[KubeObject], Any]]) -> None:
    good = {"metadata": {"name": "good", "namespace": "default"}}
    for kind in KINDS:
        items = [plain for its_kind, plain in objects if its_kind is kind]
        page = DECODERS[kind].decode_page(
            _bytes({"metadata": {"resourceVersion": "1"}, "items": [*items, good]})
        )
        decoded, bad = split_page(page)
        assert decoded[-1].metadata.name == "good"
        assert len(decoded) + len(bad) == len(items) + 1


@FUZZ
@given(OBJECTS)
def test_manifests_are_admitted_or_refused_and_never_raise(item: tuple[type[KubeObject], Any]) -> None:
    kind, plain = item
    versions = {
        Service: "v1",
        Node: "v1",
        EndpointSlice: "discovery.k8s.io/v1",
        ServiceCIDR: "networking.k8s.io/v1",
    }
    parsed = parse(_bytes({"kind": kind.__name__, "apiVersion": versions[kind], **plain}), "fuzz.json")
    assert parsed.objects or parsed.rejected
    decoded = DECODERS[kind].decode_object(_bytes(plain))
    if not isinstance(decoded, BadObject):
        assert isinstance(admit(decoded), Admitted | Refused)


@FUZZ
@given(st.binary(max_size=400))
def test_any_bytes_are_a_manifest_or_a_problem(data: bytes) -> None:
    parsed = parse(data, "fuzz.yaml")
    try:
        documents = list(yaml.safe_load_all(data))
    except (yaml.YAMLError, ValueError):
        assert parsed.rejected
    else:
        assert parsed.objects or parsed.rejected or parsed.ignored or not any(documents)


@settings(FUZZ, max_examples=40)
@given(st.lists(OBJECTS, min_size=1, max_size=12))
def test_a_running_proxy_serves_the_others_whatever_it_is_fed(
    objects: list[tuple[type[KubeObject], Any]],
) -> None:
    asyncio.run(_feed(objects))


async def _feed(objects: list[tuple[type[KubeObject], Any]]) -> None:
    ready = factory.node(addresses=[{"type": "InternalIP", "address": "172.30.0.10"}])
    async with assembled() as world:
        world.proxy.apply_config(_impatient(world))
        world.source.put(ready)
        world.source.listed()
        for kind, plain in objects:
            decoded = DECODERS[kind].decode_object(_bytes(plain))
            if not isinstance(decoded, BadObject):
                world.source.put(decoded)
        world.source.put(
            factory.service("good", "fuzz-free", clusterIP="10.96.9.9"),
            factory.endpoint_slice("10.244.1.1", name="good-a", service_name="good", namespace="fuzz-free"),
        )
        await world.settled()
        programmed = world.backends[Family.IPV4].programmed
        found = [plan for name, plan in programmed.items() if name.namespace == "fuzz-free"]
        assert len(found) == 1
        assert len(found[0].internal_endpoints) == 1
        assert all(record.last_error == "" for record in world.proxy.reporter.statuses.values())


def _impatient(world: Assembly) -> KubeProxyConfiguration:
    config = world.proxy.config
    return msgspec.structs.replace(
        config, nftables=msgspec.structs.replace(config.nftables, min_sync_period=timedelta(0))
    )


@pytest.mark.kernel
@needs_root[1]
@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_a_kernel_gets_no_say_in_what_a_name_or_annotation_means(
    node: LabNode, process: NodeProcess, api: ApiThread, mode: str
) -> None:
    """The fake API server validates nothing: port names, addresses and annotations arrive as an attacker would like."""
    hostile = []
    for number, text in enumerate(
        (
            '"; drop',
            "x\n-A INPUT -j DROP\nCOMMIT\n*nat",
            "n" * 2000,
            "--dport 1:65535",
            "`id`",
            "\x00\x01",
            "\u202e\U0001f600",
        )
    ):
        item = web_service(f"hostile-{number}", 100 + number)
        item["spec"]["ports"][0]["name"] = text
        item["metadata"]["annotations"] = {"service.kubernetes.io/topology-mode": text, text[:50]: text}
        hostile.append(item)
        slices = web_slices(f"hostile-{number}")
        for one in slices:
            one["ports"][0]["name"] = text
        slices[0]["endpoints"][0]["addresses"] = ["172.30.0.10", text[:60]]
        hostile += slices
    odd: tuple[dict[str, Any], ...] = (
        {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"]},
        {"clusterIP": "127.0.0.1", "clusterIPs": ["127.0.0.1"]},
        {"externalIPs": ["127.0.0.1", "0.0.0.0", "::1", "224.0.0.1", "x"]},
        {"loadBalancerSourceRanges": ["0.0.0.0/99", "\n", "::/0"]},
        {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": -5}}},
    )
    for number, spec in enumerate(odd):
        hostile.append(web_service(f"zz-odd-{number}", 120 + number, **spec))
        hostile += web_slices(f"zz-odd-{number}")
    api.load(node_object(), web_service("web", 10), *web_slices("web"), *hostile)
    process.configure(mode=mode, clientConnection={"kubeconfig": str(api.kubeconfig)})
    with node.backend():
        process.start(from_api=True)
        process.wait_synced()
        node.wait_served("10.96.0.10")
        node.wait_served("fd00:10:96::10")
        api.load(web_service("later", 20), *web_slices("later"))
        node.wait_served("10.96.0.20")
        for number in (0, 1, 3):
            node.wait_served(f"fd00:10:96::{100 + number}")
    assert process.alive
    assert node.get("/metrics").status == 200
    rules = node.run("iptables-save") if mode == "iptables" else node.run("nft", "list", "ruleset")
    assert "-A INPUT -j DROP" not in rules.splitlines()
    assert "Traceback" not in process.log_text
