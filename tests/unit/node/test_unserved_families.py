"""A family that this machine cannot serve matters where the Node has an address of it: then everybody is told."""

from __future__ import annotations

from typing import Any

import pytest
from tests import factory
from tests.harness.assembled import assembled
from tests.harness.metrics import read_metric

from pointsman.conditions import Blocks
from pointsman.model.addresses import Family
from pointsman.node.inspector import Inspector
from pointsman.report.status import ReloadReport

WHY = "ip6_tables is missing"
V4 = {"type": "InternalIP", "address": "192.168.1.10"}
V6 = {"type": "InternalIP", "address": "fd00::10"}


@pytest.mark.parametrize(("addresses", "told"), [([V4], False), ([V4, V6], True)])
async def test_it_is_told_where_the_node_has_an_address_of_it(
    addresses: list[dict[str, Any]], told: bool
) -> None:
    async with assembled(families=(Family.IPV4,), unsupported={Family.IPV6: WHY}) as running:
        running.source.put(factory.node("n1", addresses=addresses))
        running.source.listed()
        await running.settled()
        found = running.condition("FamilyIPv6")
        assert (found is not None) is told
        if found is not None:
            assert (found.message, found.does_block(Blocks.READINESS)) == (WHY, True)
        status = await Inspector(running.proxy, ReloadReport).status()
        assert ("FamilyIPv6" in [one.type for one in status.conditions]) is told
        text = running.metrics.render().decode()
        assert read_metric(text, "pointsman_condition", type="FamilyIPv6", reason="NotSupported") == float(
            told
        )


async def test_what_is_told_follows_the_addresses_of_the_node() -> None:
    async with assembled(families=(Family.IPV4,), unsupported={Family.IPV6: WHY}) as running:
        running.source.put(factory.node("n1", addresses=[V4]))
        running.source.listed()
        await running.settled()
        assert running.condition("FamilyIPv6") is None
        running.source.put(factory.node("n1", addresses=[V4, V6]), factory.service())
        await running.settled()
        assert running.condition("FamilyIPv6") is not None
        running.source.put(
            factory.node("n1", addresses=[V4]), factory.service("other", clusterIP="10.96.0.12")
        )
        await running.settled()
        assert running.condition("FamilyIPv6") is None
