"""Changes that have not been made: which objects they change, and which limits and verdicts follow."""

from __future__ import annotations

from typing import Any

import pytest
from tests import factory

from pointsman.errors import ConfigError
from pointsman.model.objects import KubeObject, SliceEndpoint
from pointsman.simulate.cluster import Cluster, build_cluster, weigh_nodes
from pointsman.simulate.report import Limits, SimulationReport, build_report
from pointsman.simulate.text import render_percent
from pointsman.simulate.traffic import simulate
from pointsman.simulate.whatif import WhatIf

SAME_ZONE = "default/web:trafficDistribution=PreferSameZone"


def build_web(*nodes: str, **more: Any) -> Cluster:
    """Two zones of two nodes each, and an endpoint on each of these nodes."""
    objects: list[KubeObject] = [factory.node(name, zone=name[0]) for name in ("a1", "a2", "b1", "b2")]
    endpoints = [
        {
            "addresses": [f"10.244.0.{number}"],
            "nodeName": node,
            "zone": node[0],
            "targetRef": {"kind": "Pod", "name": f"web-{number}"},
        }
        for number, node in enumerate(nodes, 1)
    ]
    ports = [{"name": "http", "port": 8080}]
    return build_cluster([*objects, factory.service(**more), factory.endpoint_slice(*endpoints, ports=ports)])


def list_endpoints(cluster: Cluster) -> list[SliceEndpoint]:
    return [endpoint for item in cluster.slices.values() for endpoint in item.endpoints or ()]


def list_nodes(cluster: Cluster) -> list[str | None]:
    return [endpoint.node_name for endpoint in list_endpoints(cluster)]


def list_zone_hints(cluster: Cluster) -> list[list[str]]:
    return [
        [hint.name for hint in (endpoint.hints.for_zones or () if endpoint.hints else ())]
        for endpoint in list_endpoints(cluster)
    ]


def compare(before: Cluster, change: WhatIf, limits: Limits = Limits()) -> SimulationReport:  # noqa: B008
    after = change.apply_to(before)
    results = [simulate(cluster, weigh_nodes(cluster)) for cluster in (before, after)]
    return build_report(results[0], results[1], limits)


def test_a_removed_node_takes_its_endpoints_with_it() -> None:
    after = WhatIf(removals=["node/a1"]).apply_to(build_web("a1", "a2", "b1"))
    assert "a1" not in after.nodes
    assert list_nodes(after) == ["a2", "b1"]


def test_a_removed_zone_takes_its_nodes_with_it() -> None:
    after = WhatIf(removals=["zone/a"]).apply_to(build_web("a1", "a2", "b1"))
    assert set(after.nodes) == {"b1", "b2"}
    assert list_nodes(after) == ["b1"]


def test_a_removed_pod_leaves_its_node() -> None:
    after = WhatIf(removals=["pod/default/web-2"]).apply_to(build_web("a1", "a2", "b1"))
    assert "a2" in after.nodes
    assert list_nodes(after) == ["a1", "b1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (WhatIf(removals=["node/a11"]), "--remove node/a11: not found"),
        (WhatIf(removals=["zone/c"]), "--remove zone/c: not found"),
        (WhatIf(removals=["pod/default/web-9"]), "not found"),
        (WhatIf(removals=["deployment/web"]), "must be node/NAME, zone/NAME or pod/NAMESPACE/NAME"),
        (WhatIf(scales=["default/web=many"]), "must be NAMESPACE/NAME=REPLICAS"),
        (WhatIf(scales=["default/wbe=3"]), "no Service default/wbe"),
        (WhatIf(settings=["default/web:externalTrafficPolicy=Lokal"]), "must be one of Cluster, Local"),
        (WhatIf(settings=["default/web:trafficPolicy=Local"]), "with one of the fields"),
    ],
)
def test_what_does_not_exist_cannot_change(change: WhatIf, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change.apply_to(build_web("a1"))


def test_scaling_down_empties_the_fullest_zone_and_node_first() -> None:
    after = WhatIf(scales=["default/web=2"]).apply_to(build_web("a1", "a1", "a2", "b1"))
    assert list_nodes(after) == ["a1", "b1"]


def test_scaling_up_fills_the_emptiest_zone_and_node_first() -> None:
    after = WhatIf(scales=["default/web=5"]).apply_to(build_web("a1", "a1"))
    assert list_nodes(after) == ["a1", "a1", "b1", "b2", "a2"]
    addresses = [endpoint.addresses for endpoint in list_endpoints(after)]
    assert len({tuple(one or ()) for one in addresses}) == 5


def test_same_zone_writes_the_hints_that_the_controller_would_write() -> None:
    after = WhatIf(settings=[SAME_ZONE]).apply_to(build_web("a1", "b1"))
    assert list_zone_hints(after) == [["a"], ["b"]]


def test_hints_follow_the_endpoints_that_remain() -> None:
    change = WhatIf(settings=[SAME_ZONE], removals=["zone/b"])
    assert list_zone_hints(change.apply_to(build_web("a1", "b1"))) == [["a"]]


def test_hints_of_something_else_are_kept() -> None:
    """`topology-mode: Auto` distributes hints by the processors of the zones, which is not modelled."""
    hinted = {
        "addresses": ["10.244.0.9"],
        "nodeName": "a1",
        "zone": "a",
        "hints": {"forZones": [{"name": "b"}]},
    }
    cluster = build_cluster(
        [
            factory.node("a1", zone="a"),
            factory.node("b1", zone="b"),
            factory.service(),
            factory.endpoint_slice(hinted),
        ]
    )
    assert list_zone_hints(WhatIf(removals=["node/b1"]).apply_to(cluster)) == [["b"]]


def test_applied_manifests_replace_objects_of_the_same_name() -> None:
    changed = factory.service(trafficDistribution="PreferSameZone")
    after = WhatIf(apply=[changed, factory.service("new", clusterIP="10.96.0.77")]).apply_to(
        build_web("a1", "b1")
    )
    assert set(after.services) == {"default/web", "default/new"}
    assert list_zone_hints(after) == [["a"], ["b"]]


def test_a_service_that_loses_its_last_endpoint_goes_down() -> None:
    report = compare(build_web("a1"), WhatIf(removals=["node/a1"]))
    assert [change.goes_down for change in report.changes] == [True]
    assert not report.is_safe


def test_a_service_that_was_down_before_does_not_count() -> None:
    report = compare(build_web(), WhatIf(removals=["node/a1"]))
    assert report.is_safe


def test_endpoints_with_more_connections_are_named() -> None:
    report = compare(build_web("a1", "a2", "b1"), WhatIf(settings=[SAME_ZONE]))
    (change,) = report.changes
    assert [(one.pod, round(one.factor, 2)) for one in change.grown] == []
    report = compare(build_web("a1", "a2", "b1"), WhatIf(settings=[SAME_ZONE]), Limits(growth=1.2))
    (change,) = report.changes
    assert [(one.pod, round(one.factor, 2)) for one in change.grown] == [("web-3", 1.5)]


def test_limits_apply_to_the_cluster_after_the_change() -> None:
    limits = Limits(max_skew=1.4, max_cross_zone=0.4)
    before = build_web("a1", "a2", "b1")
    unchanged = build_report(simulate(before, weigh_nodes(before)), None, limits)
    assert [one.kind for one in unchanged.exceeded] == ["crossZone"]
    report = compare(before, WhatIf(settings=[SAME_ZONE]), limits)
    assert [one.kind for one in report.exceeded] == ["skew"]
    assert not report.is_safe


def test_a_change_of_nothing_is_safe() -> None:
    report = compare(build_web("a1"), WhatIf(settings=["default/web:internalTrafficPolicy=Cluster"]))
    assert report.changes == ()
    assert report.is_safe


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.375, "38%"), (0.3749999999999999, "38%"), (0.0149999999999999, "1.5%"), (0.004, "0.4%")],
)
def test_a_percentage_does_not_depend_on_how_the_interpreter_adds(share: float, text: str) -> None:
    """Python 3.12 and later add floats more exactly than 3.11."""
    assert render_percent(share) == text
