"""Objects of the source on their way to the trackers."""

from __future__ import annotations

import pytest
from tests import factory
from tests.harness.assembled import assembled
from tests.harness.metrics import read_metric

from pointsman.model.addresses import Family
from pointsman.model.objects import Delete, Service
from pointsman.model.tracker import Tracker


async def test_a_bug_met_in_one_object_is_counted_by_its_kind_and_the_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upsert = Tracker.upsert_service

    def fail(tracker: Tracker, service: Service) -> bool:
        if service.metadata.name == "bad":
            raise ZeroDivisionError("a bug")
        return upsert(tracker, service)

    def fail_to_delete(_tracker: Tracker, _key: str) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Tracker, "upsert_service", fail)
    monkeypatch.setattr(Tracker, "delete_slice", fail_to_delete)
    async with assembled(families=(Family.IPV4,)) as world:
        world.source.put(
            factory.node("n1", addresses=[{"type": "InternalIP", "address": "172.30.0.10"}]),
            factory.service("bad"),
            factory.service("good", clusterIP="10.96.0.11"),
        )
        world.source.queue.put_nowait(Delete(type(factory.endpoint_slice()), "default/a"))
        world.source.listed()
        await world.settled()
        assert [name.service for name in world.backends[Family.IPV4].programmed] == ["good"]
        text = world.metrics.render().decode()
        for kind in ("Service", "EndpointSlice"):
            labels = {"kind": kind, "reason": "InternalError"}
            assert read_metric(text, "pointsman_objects_skipped_total", **labels) == 1
