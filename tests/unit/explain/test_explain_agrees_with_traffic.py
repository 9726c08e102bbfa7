"""explain foretells exactly what the end-to-end tests see with real packets: the same services, clients and modes."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

import msgspec
import pytest
from tests.e2e.behaviour import Case, Expect
from tests.e2e.matrix import SERVICES, SETTINGS, Setting
from tests.harness.config_file import config_from_bytes

from pointsman.app.offline import plan_objects
from pointsman.config.defaults import with_mode
from pointsman.explain.answer import explain
from pointsman.explain.service_port import Explanation
from pointsman.explain.target import Target
from pointsman.explain.view import View
from pointsman.lab.hosts import BRIDGE, HOSTS
from pointsman.lab.objects import node_manifest, service_range_manifest
from pointsman.lab.probe import Kind
from pointsman.lab.proxy import configuration
from pointsman.model.addresses import Family, address_from_text
from pointsman.model.decision import DecisionReason, SourceAddress
from pointsman.model.findings import Code
from pointsman.model.plan import Outcome
from pointsman.model.service import Protocol
from pointsman.source.documents import parse


@functools.cache
def view_of(setting_name: str, mode: str) -> View:
    setting = next(entry for entry in SETTINGS if entry.name == setting_name)
    items = [node_manifest("n1"), node_manifest("n2"), service_range_manifest()]
    for service in SERVICES.values():
        items += service.manifests()
    parsed = parse(json.dumps({"kind": "List", "items": items}).encode(), "lab")
    assert parsed.findings == []
    config = config_from_bytes(json.dumps(configuration(mode, **setting.configuration)).encode())
    addresses = {
        Family.IPV4: ("127.0.0.1", HOSTS["n1"].ipv4, BRIDGE["n1"][4]),
        Family.IPV6: ("::1", HOSTS["n1"].ipv6, BRIDGE["n1"][6]),
    }
    local = {
        family: [address for text in texts if (address := address_from_text(text)) is not None]
        for family, texts in addresses.items()
    }
    return plan_objects(parsed.objects, with_mode(config, mode), local_addresses=local).view


KEPT = (SourceAddress.KEPT, SourceAddress.KEPT_EXCEPT_HAIRPIN, SourceAddress.KEPT_ON_NODE)


def judged() -> Iterator[object]:
    for setting in SETTINGS:
        for mode in setting.modes:
            for case in setting.cases:
                for family in case.families:
                    expect = case.expectation(mode)
                    if expect is not None and case.protocol in Protocol.__members__:
                        name = f"{mode}-v{family}-{setting.name}-{case.id}-{case.protocol}"
                        yield pytest.param(setting, mode, family, case, expect, id=name)


def asked(setting: Setting, mode: str, family: int, case: Case) -> Explanation:
    probe = case.probes(SERVICES, family, mode)[0]
    address = address_from_text(probe.address)
    target = Target(text=case.id, address=address, number=probe.port, protocol=Protocol[case.protocol])
    return explain(view_of(setting.name, mode), target, HOSTS[case.host].address(family))


@pytest.mark.parametrize(("setting", "mode", "family", "case", "expect"), list(judged()))
def test_explain_says_what_packets_meet(
    setting: Setting, mode: str, family: int, case: Case, expect: Expect
) -> None:
    explanation = asked(setting, mode, family, case)
    seen = msgspec.json.encode(explanation).decode()
    asked_paths = [p for port in explanation.ports for f in port.frontends if f.asked for p in f.outcomes]
    if expect.kind is not Kind.ANSWERED:
        assert not explanation.is_healthy, seen
        if asked_paths:
            refused = any(path.outcome is Outcome.REJECTED for path in asked_paths)
            assert refused is (expect.kind is Kind.REFUSED), seen
        else:
            (cause,) = explanation.findings
            if cause.code is Code.WRONG_PORT:
                assert bool(cause.parameters["rejected"]) is (expect.kind is Kind.REFUSED), seen
            if cause.code is Code.NO_SERVICE_AT_ADDRESS:
                assert expect.kind is not Kind.REFUSED, seen
        return
    (path,) = asked_paths
    if mode == "ipvs" and path.reason is DecisionReason.REPLIES_BYPASS_NODE:
        # The lab's clients use the node as their gateway, so here the answers do come back through it.
        assert case.host in ("client", "client2"), seen
        return
    assert path.is_delivered, seen
    by = {HOSTS[name].address(family) for name in expect.by}
    assert {text.rpartition(":")[0].strip("[]") for text in path.endpoints} == by, seen
    on_node = expect.by == {"n1"}
    assert path.source is not None
    assert (path.source in KEPT) is (on_node or not expect.masqueraded), seen
    if case.host in expect.by and not expect.masqueraded and not on_node:
        assert path.source is SourceAddress.KEPT_EXCEPT_HAIRPIN, seen
