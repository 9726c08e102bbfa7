"""The zones as a picture."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree as ET

import pytest
from tests import factory

from pointsman.simulate.cluster import build_cluster, weigh_nodes
from pointsman.simulate.picture import render_svg
from pointsman.simulate.report import Limits, build_report
from pointsman.simulate.traffic import simulate

RECTANGLE = "{http://www.w3.org/2000/svg}rect"


@pytest.mark.parametrize("zones", [1, 3, 7, 12, 16])
def test_zones_do_not_cover_each_other(zones: int) -> None:
    cluster = build_cluster([factory.node(f"n{number}", f"zone-{number:02}") for number in range(zones)])
    report = build_report(simulate(cluster, weigh_nodes(cluster)), None, Limits())
    drawn = ET.fromstring(render_svg(report))
    boxes = [
        tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        for box in drawn.iter(RECTANGLE)
    ]
    assert len(boxes) == zones
    for (x1, y1, width, height), (x2, y2, _, _) in itertools.combinations(boxes, 2):
        assert abs(x1 - x2) >= width or abs(y1 - y2) >= height
