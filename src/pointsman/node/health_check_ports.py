"""Health check node ports: after each sync, those of all Services that request one are open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from pointsman.conditions import Blocks, Condition
from pointsman.kube.event_recorder import LISTENING, Recorder
from pointsman.model.addresses import Family, address_text
from pointsman.model.node_context import NodeContext
from pointsman.model.tracker import Tracker
from pointsman.node.health import ProxyHealth, join_first
from pointsman.serve.connections import Connections
from pointsman.serve.service_health import ServiceHealth, ServiceHealthPorts
from pointsman.sync.loop import SyncListener, merge_in_steps
from pointsman.sync.reconcile import SyncOutcome


class HealthCheckPorts(SyncListener):
    """The ports of all IP families, with the counts of local endpoints from the trackers."""

    def __init__(
        self,
        trackers: Mapping[Family, Tracker],
        node_name: str,
        health: ProxyHealth,
        recorder: Recorder,
        connections: Connections,
    ) -> None:
        self._trackers = trackers
        self._recorder = recorder
        self._ports = {
            family: ServiceHealthPorts(
                node_name,
                lambda: health.accepts_traffic,
                self._on_bind_failed,
                connections,
            )
            for family in trackers
        }
        self._tasks: set[asyncio.Task[None]] = set()

    def on_synced(self, outcome: SyncOutcome) -> None:
        task = asyncio.get_running_loop().create_task(self._sync_ports(outcome.context))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for ports in self._ports.values():
            await ports.close()

    async def _sync_ports(self, context: NodeContext) -> None:
        family, where = context.family, context.node_port_addresses
        await merge_in_steps(self._trackers[family])
        wanted = {
            port.name.key: ServiceHealth(
                namespace=port.name.namespace,
                name=port.name.service,
                port=port.service.health_check_node_port,
                local_endpoints=count,
            )
            for port, count in self._trackers[family].count_local_ready()
        }
        addresses = (family.any_address,) if where.match_all else where.addresses
        await self._ports[family].sync(wanted, [address_text(address) for address in addresses])

    def conditions(self) -> Iterator[Condition]:
        """Yield whether all ports are open; one that is not is tried again after the next sync."""
        closed = [f"{key}: {why}" for ports in self._ports.values() for key, why in ports.failures.items()]
        type_ = "HealthCheckNodePorts"
        if closed:
            yield Condition.false(
                type_, "BindFailed", join_first(closed, len(closed)), blocks=Blocks.READINESS
            )
        else:
            yield Condition.true(type_, Blocks.READINESS)

    def _on_bind_failed(self, service: ServiceHealth, message: str) -> None:
        self._recorder.service_event(
            service.key, "FailedToStartServiceHealthcheck", message, action=LISTENING
        )
