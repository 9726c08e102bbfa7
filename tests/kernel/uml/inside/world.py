"""ipvs backends on node n1 of the lab, without a process of their own."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Any

import msgspec
from tests.harness.flows import Flow
from tests.harness.world import Clients

from pointsman.backends.contract import Setup
from pointsman.backends.ipvs.apply import IpvsBackend, IpvsSettings
from pointsman.backends.ipvs.mode import prepare
from pointsman.config.types import KubeProxyConfiguration
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.rtnl import list_local_addresses
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import CLUSTER_RANGES, SERVICE_RANGES
from pointsman.lab.objects import LabService, node_manifest
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext, build_node_facts
from pointsman.model.objects import EndpointSlice, Node, Service
from pointsman.model.tracker import Tracker
from pointsman.node.state import build_node_context
from pointsman.sync.reconcile import Reconciler, SyncOutcome

TIMEOUT_SECONDS = 4.0
"""User-mode Linux is slow; a timeout must still mean a dropped packet."""
NUMBER = {Family.IPV4: 4, Family.IPV6: 6}


class AbortableFlow(Flow):
    """A connection that can be reset: ipvs would keep a closed one for two minutes."""

    def abort(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class IpvsWorld(Clients):
    """The lab's cluster with an ipvs backend per family on n1, in this process."""

    families = (4,)
    timeout = TIMEOUT_SECONDS
    tries = 6

    def __init__(
        self, cluster: Cluster, iptables: dict[Family, Iptables], settings: IpvsSettings | None = None
    ) -> None:
        super().__init__(cluster)
        self.clock = 0.0
        self._iptables = iptables
        self._settings = settings or IpvsSettings()
        self.backends: dict[Family, IpvsBackend] = {}
        self.contexts: dict[Family, NodeContext] = {}
        self._config = KubeProxyConfiguration(mode="ipvs", cluster_cidr=",".join(CLUSTER_RANGES))
        self._objects: dict[Family, dict[str, Service | EndpointSlice]] = {family: {} for family in Family}
        with cluster["n1"].entered():
            prepare(Setup(self._config), Sysctls(), tuple(Family))
        self.restart()

    def restart(self) -> None:
        """Start again with nothing but the state of the kernel, as a new process does."""
        self.close()
        with self.cluster["n1"].entered():
            self.backends = {
                family: IpvsBackend(family, self._iptables[family], self._settings, clock=lambda: self.clock)
                for family in Family
            }
        self._trackers = {family: Tracker(family, "n1") for family in Family}
        self.reconcilers = {family: Reconciler(backend) for family, backend in self.backends.items()}
        self._objects = {family: {} for family in Family}

    def close(self) -> None:
        for backend in self.backends.values():
            backend.close()

    def apply(self, services: Iterable[LabService], *, full: bool = False) -> dict[Family, SyncOutcome]:
        """Bring the proxy to exactly these services."""
        manifests = [manifest for service in services for manifest in service.manifests()]
        return {family: self.apply_manifests(family, manifests, full=full) for family in Family}

    def apply_manifests(
        self, family: Family, manifests: list[dict[str, Any]], *, full: bool = False
    ) -> SyncOutcome:
        tracker, before = self._trackers[family], self._objects[family]
        now: dict[str, Service | EndpointSlice] = {}
        for manifest in manifests:
            kind: type[Service | EndpointSlice] = Service if manifest["kind"] == "Service" else EndpointSlice
            found = msgspec.convert(manifest, kind)
            now[f"{manifest['kind']} {found.metadata.key}"] = found
            if isinstance(found, Service):
                tracker.upsert_service(found)
            else:
                tracker.upsert_slice(found)
        for key in before.keys() - now.keys():
            gone = before[key]
            if isinstance(gone, Service):
                tracker.delete_service(gone.metadata.key)
            else:
                tracker.delete_slice(gone.metadata.key)
        self._objects[family] = now
        with self.cluster["n1"].entered():
            addresses = list_local_addresses(family, exclude=("kube-ipvs0",))
            node = msgspec.convert(node_manifest("n1"), Node)
            self.contexts[family] = build_node_context(
                self._config,
                family,
                build_node_facts("n1", node, self._config.bind_address),
                local_addresses=addresses,
                service_cidrs=SERVICE_RANGES,
            )
            return self.reconcilers[family].sync(tracker.take(), self.contexts[family], full=full)

    def remove_drained(self, seconds: float) -> int:
        """Let time pass and do the periodic work; return how many drained servers were removed."""
        self.clock += seconds
        before = sum(backend.draining for backend in self.backends.values())
        with self.cluster["n1"].entered():
            for backend in self.backends.values():
                backend.maintain()
        return before - sum(backend.draining for backend in self.backends.values())

    def flow(
        self, host: str, service: LabService, to: str = "cluster", family: int = 4, protocol: str = "TCP"
    ) -> AbortableFlow:
        return AbortableFlow(self.cluster, self.probe(host, service, to, family, protocol), TIMEOUT_SECONDS)

    def in_node(self, *command: str) -> str:
        return self.cluster["n1"].run(command)
