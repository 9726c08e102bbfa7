"""The list of services: searched by every word, sorted by name, cut into pages."""

from __future__ import annotations

import pytest
from tests import factory

from pointsman.backends import mode_named
from pointsman.explain.build import summarize_plan
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.tracker import PortState
from pointsman.report.service_list import MAX_ROWS, build_page

PLANS = [
    factory.plan(factory.service_port("web", cluster_ip="10.96.0.1"), factory.endpoint("10.244.1.1")),
    factory.plan(factory.service_port("Api", namespace="shop", cluster_ip="10.96.0.2", node_port=30080)),
    factory.plan(
        factory.service_port(
            "edge",
            namespace="shop",
            cluster_ip="10.96.0.3",
            load_balancer_ips=("203.0.113.9",),
            external_local=True,
        ),
        factory.endpoint("10.244.2.1", node="n2"),
    ),
]
SIX = factory.plan(factory.service_port("web", cluster_ip="fd00::abc"), factory.endpoint("fd00::1"))


def _family(family: Family, plans: list[ServicePlan]) -> FamilyView:
    states = {plan.name: PortState(plan.port, plan.endpoints.all) for plan in plans}
    return FamilyView(factory.context(family), {plan.name: plan for plan in plans}, states)


def _view(*families: FamilyView) -> View:
    return View("n1", mode_named("nftables"), live=True, families=families)


EVERYTHING = _view(_family(Family.IPV4, PLANS), _family(Family.IPV6, [SIX]))


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("", ["default/web", "default/web", "shop/Api", "shop/edge"]),
        ("shop", ["shop/Api", "shop/edge"]),
        ("SHOP/API", ["shop/Api"]),
        ("203.0.113", ["shop/edge"]),
        ("fd00::ab", ["default/web"]),
        ("30080", ["shop/Api"]),
        ("nodeport", ["shop/Api"]),
        ("down", ["shop/Api"]),
        ("partial local", ["shop/edge"]),
        ("ipv6", ["default/web"]),
        ("tcp shop", ["shop/Api", "shop/edge"]),
        ("nothing", []),
    ],
)
def test_every_word_must_be_shown_in_the_row(search: str, found: list[str]) -> None:
    page = build_page(EVERYTHING, search)
    assert [row.service for row in page.ports] == found
    assert (page.found, page.total) == (len(found), 4)


def test_pages_are_cut_and_bounded() -> None:
    page = build_page(EVERYTHING, offset=1, limit=2)
    assert [(row.service, row.family) for row in page.ports] == [
        ("default/web", "IPv6"),
        ("shop/Api", "IPv4"),
    ]
    assert (page.found, page.offset) == (4, 1)
    assert build_page(EVERYTHING, offset=10).ports == ()
    many = [
        factory.plan(factory.service_port(f"s{n}", cluster_ip=f"10.96.{n // 250}.{n % 250}"))
        for n in range(MAX_ROWS + 50)
    ]
    assert len(build_page(_view(_family(Family.IPV4, many)), limit=10_000).ports) == MAX_ROWS


def test_a_row_counts_endpoints_and_tells_the_state() -> None:
    row = summarize_plan(PLANS[2], EVERYTHING.families[0], EVERYTHING.mode)
    assert (row.usable, row.total, row.local, row.state) == (1, 1, 0, "partial")
    assert [(entry.kind, entry.policy, entry.address) for entry in row.frontends] == [
        ("ClusterIP", "Cluster", "10.96.0.3:80"),
        ("LoadBalancerIP", "Local", "203.0.113.9:80"),
    ]


@pytest.mark.parametrize(
    ("sort", "services"),
    [
        ("", ["default/web", "shop/Api", "shop/edge"]),
        ("unheard of", ["default/web", "shop/Api", "shop/edge"]),
        ("state", ["shop/Api", "shop/edge", "default/web"]),
        ("policy", ["default/web", "shop/Api", "shop/edge"]),
        ("endpoints", ["default/web", "shop/edge", "shop/Api"]),
        ("address", ["default/web", "shop/Api", "shop/edge"]),
    ],
)
def test_rows_are_sorted_by_name_or_as_asked_both_ways(sort: str, services: list[str]) -> None:
    view = _view(_family(Family.IPV4, PLANS))
    assert [row.service for row in build_page(view, sort=sort).ports] == services
    assert [row.service for row in build_page(view, sort=sort, reverse=True).ports] == services[::-1]
    assert build_page(view, sort=sort, offset=1, limit=1).ports[0].service == services[1]
