"""explain and the list of services name the scheduler and what became of the wish for one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests import factory
from tests.unit.explain.explaining import asked, codes, only_port, view_of

from pointsman.explain.service_port import Explanation
from pointsman.explain.text import render_explanation
from pointsman.machine.host_facts import HostFacts
from pointsman.model.addresses import Family
from pointsman.model.tracker import PortState
from pointsman.report.service_list import build_page
from pointsman.report.service_table import WIDE_COLUMNS, ListTable


def explained(mode: str = "nftables", annotations: dict[str, str] | None = None, **spec: Any) -> Explanation:
    named = {f"pointsman.dev/{name}": value for name, value in (annotations or {}).items()}
    return asked(
        view_of(
            factory.service(metadata={"annotations": named}, **spec),
            factory.endpoint_slice(
                {"addresses": ["10.244.1.1"], "zone": "a"}, {"addresses": ["10.244.1.2"], "zone": "b"}
            ),
            mode=mode,
        ),
        "web",
    )


def test_even_random_balancing_goes_without_saying() -> None:
    found = explained()
    assert only_port(found).scheduler == ""
    assert "Balancing" not in render_explanation(found)


def test_weights_are_shown_as_shares() -> None:
    found = explained(annotations={"weights": "zone/a=3"})
    assert (
        "  Balancing: weighted, at random; shares 10.244.1.1:8080 75.0%, 10.244.1.2:8080 25.0%\n"
        in render_explanation(found)
    )


def test_a_slow_start_is_named_while_it_lasts() -> None:
    port = factory.service_port()
    made = factory.plan(port, factory.endpoint("10.244.1.1"), factory.endpoint("10.244.1.2", share=50))
    view = view_of(factory.service(), factory.endpoint_slice("10.244.1.1"))
    (first, *rest) = view.families
    states = {made.name: PortState(made.port, made.endpoints.all)}
    planned = msgspec.structs.replace(first, plans={made.name: made}, states=states)
    found = asked(msgspec.structs.replace(view, families=(planned, *rest)), "web")
    assert "Balancing: random, at random while new endpoints warm up; shares " in render_explanation(found)


def test_a_hash_says_what_it_does_to_session_affinity() -> None:
    found = explained(annotations={"scheduler": "source-hash"}, sessionAffinity="ClientIP")
    assert (
        "Balancing: source-hash, by a hash of the client's address; session affinity comes from the hash and has no "
        "timeout\n"
    ) in render_explanation(found)


def test_shares_of_a_hash_are_those_of_the_weights_in_every_mode() -> None:
    """No table is filled to tell them: ipvs mode has none, and hashes any number of endpoints."""
    for mode in ("nftables", "ipvs"):
        found = explained(mode, {"scheduler": "source-hash", "weights": "zone/a=3"})
        assert "shares 10.244.1.1:8080 75.0%, 10.244.1.2:8080 25.0%" in render_explanation(found)


def test_too_many_endpoints_for_a_hash_are_a_cause_with_advice() -> None:
    pods = [f"10.244.{number // 250}.{number % 250}" for number in range(3000)]
    annotations = {"pointsman.dev/scheduler": "source-hash"}
    view = view_of(factory.service(metadata={"annotations": annotations}), factory.endpoint_slice(*pods))
    assert "TooManyToHash" in codes(asked(view, "web"))


def test_a_scheduler_the_mode_lacks_and_a_word_nobody_knows_are_causes() -> None:
    assert "SchedulerNotPossible" in codes(explained("iptables", {"scheduler": "source-hash"}))
    found = explained(annotations={"scheduler": "fastest"})
    assert "BadAnnotation" in codes(found)
    assert found.is_healthy


def test_resets_of_connections_to_gone_endpoints_are_named() -> None:
    found = explained(annotations={"reset-gone": "true"})
    assert (
        "  Removed endpoints: a connection to one is reset with the client's next packet\n"
        in render_explanation(found)
    )
    assert "Removed endpoints" not in render_explanation(explained())
    view = view_of(factory.service(metadata={"annotations": {"pointsman.dev/reset-gone": "true"}}))
    rows = build_page(view, "reset-gone").ports
    assert [row.resets_gone for row in rows] == [True]
    heading, line = ListTable(WIDE_COLUMNS).render(rows).splitlines()
    assert line[heading.index("GONE") :].split()[0] == "reset"


def test_udp_flows_that_stay_on_terminating_endpoints_are_named() -> None:
    line = "  Terminating endpoints: a UDP flow to one stays there until it is removed, even if it no longer serves\n"
    keeping = {"annotations": {"pointsman.dev/udp-draining": "keep"}}
    for protocol, named in (("UDP", True), ("TCP", False)):
        ports = [{"port": 53, "protocol": protocol}]
        found = asked(view_of(factory.service(metadata=keeping, ports=ports)), "web")
        assert (line in render_explanation(found)) is named


@pytest.mark.parametrize(
    ("mode", "loose", "said"),
    [("nftables", False, True), ("nftables", True, False), ("iptables", False, True), ("ipvs", False, False)],
)
def test_what_resets_need_of_the_kernel_is_said(mode: str, loose: bool, said: bool) -> None:
    view = view_of(
        factory.service(metadata={"annotations": {"pointsman.dev/reset-gone": "true"}}),
        factory.endpoint_slice("10.244.1.1"),
        mode=mode,
    )
    (first, *rest) = view.families
    facts = HostFacts(Family.IPV4, forwarding=True, conntrack_loose=loose)
    looked = (msgspec.structs.replace(first, host=facts), *rest)
    found = asked(msgspec.structs.replace(view, families=looked), "web")
    assert ("ResetGoneNeedsLooseTracking" in codes(found)) is said


def test_the_list_of_services_names_schedulers_and_finds_by_them() -> None:
    view = view_of(
        factory.service(metadata={"annotations": {"pointsman.dev/scheduler": "source-hash"}}),
        factory.service("plain", clusterIP="10.96.0.11"),
    )
    rows = build_page(view, "hash").ports
    assert [(row.service, row.scheduler) for row in rows] == [("default/web", "source-hash")]
    assert [row.scheduler for row in build_page(view, "plain").ports] == [""]
    head, line = ListTable(WIDE_COLUMNS).render(rows).splitlines()
    assert line[head.index("SCHEDULER") :].split()[0] == "source-hash"
