"""The condition of health check node ports: false while one cannot be opened, with the Service and the reason."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

from tests import factory
from tests.harness.waiting import async_wait_until

from pointsman.conditions import Condition
from pointsman.kube.event_recorder import Recorder
from pointsman.model.addresses import Family
from pointsman.model.tracker import Tracker
from pointsman.node.health_check_ports import HealthCheckPorts
from pointsman.serve.connections import Connections


async def test_a_port_that_is_taken_is_a_condition_until_a_later_sync_opens_it() -> None:
    tracker = Tracker(Family.IPV4, "n1")
    health: Any = SimpleNamespace(accepts_traffic=True)
    ports = HealthCheckPorts({Family.IPV4: tracker}, "n1", health, Recorder(), Connections())

    def condition() -> Condition:
        (found,) = ports.conditions()
        return found

    outcome = cast("Any", SimpleNamespace(context=factory.context()))
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        number = holder.getsockname()[1]
        tracker.upsert_service(
            factory.service(type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=number)
        )
        assert condition().is_true
        ports.on_synced(outcome)
        await async_wait_until(lambda: not condition().is_true)
        assert condition().reason == "BindFailed"
        assert condition().message.startswith("default/web: node n1 failed to start healthcheck")
    ports.on_synced(outcome)
    await async_wait_until(lambda: condition().is_true)
    await ports.close()
