"""The rendered table, word for word: what an operator reads for a cluster with one of everything.

To accept a deliberate change: POINTSMAN_ACCEPT=1 pytest tests/golden/test_nftables_render_golden.py, then read the diff.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest
from tests.golden import scenario as scenarios

from pointsman.backends.nftables.mode import render
from pointsman.model.addresses import Family

EXPECTED = Path(__file__).parent / "nftables"
KEYWORD = {Family.IPV4: "ip", Family.IPV6: "ip6"}


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
@pytest.mark.parametrize("name", ["everything", "detect-local-bridge", "empty"])
def test_rendered_table_reads_as_recorded(name: str, family: Family) -> None:
    ((_, request),) = scenarios.requests(scenarios.load(name), "nftables", family)
    rendered = render(request)
    path = EXPECTED / f"{name}.{KEYWORD[family]}.nft"
    if os.environ.get("POINTSMAN_ACCEPT"):
        path.write_text(rendered)
    assert rendered == path.read_text()


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_the_order_in_which_services_came_does_not_show(family: Family) -> None:
    ((_, request),) = scenarios.requests(scenarios.load("everything"), "nftables", family)
    rendered = render(request)
    names = list(request.plans)
    for seed in range(5):
        random.Random(seed).shuffle(names)
        shuffled = msgspec.structs.replace(request, plans={name: request.plans[name] for name in names})
        assert render(shuffled) == rendered
