"""The lab's cluster with an ipvs backend per family on node n1, driven without any process of its own."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Any

import msgspec
from tests.e2e import harness

from pointsman.backends.contract import Setup
from pointsman.backends.ipvs.apply import IpvsBackend, IpvsSettings
from pointsman.backends.ipvs.preflight import prepare
from pointsman.config.types import KubeProxyConfiguration
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.rtnl import local_addresses
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import CLUSTER_RANGES, HOSTS, SERVICE_RANGES
from pointsman.lab.objects import LabService, node_manifest
from pointsman.lab.probe import Flow, Outcome, Probe, run_probes
from pointsman.model.addresses import Family
from pointsman.model.node import build_node_facts
from pointsman.model.node_context import NodeContext
from pointsman.model.objects import EndpointSlice, Node, Service
from pointsman.model.tracker import Tracker
from pointsman.node.node_context import node_context
from pointsman.sync.reconcile import Reconciler, SyncOutcome

DEADLINE = 4.0
"""This machine is slow; silence must still be told from slowness."""
NUMBER = {Family.IPV4: 4, Family.IPV6: 6}


class AbortableFlow(Flow):
    """A connection that can be ended by a reset: a proper end would be remembered for two minutes."""

    def abort(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class World:
    """Ask clients, change services, restart the proxy."""

    def __init__(
        self, cluster: Cluster, iptables: dict[Family, Iptables], settings: IpvsSettings | None = None
    ) -> None:
        self.cluster = cluster
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
        """A new process: nothing is remembered but what the kernel holds."""
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
            addresses = local_addresses(family, exclude=("kube-ipvs0",))
            node = msgspec.convert(node_manifest("n1"), Node)
            self.contexts[family] = node_context(
                self._config,
                family,
                build_node_facts("n1", node, self._config.bind_address),
                local_addresses=addresses,
                service_cidrs=SERVICE_RANGES,
            )
            return self.reconcilers[family].sync(tracker.take(), self.contexts[family], full=full)

    def tend(self, seconds: float) -> int:
        """Let time pass and do the periodic work; how many drained servers went."""
        self.clock += seconds
        with self.cluster["n1"].entered():
            return sum(backend.tend() for backend in self.backends.values())

    def ask(
        self, host: str, service: LabService, to: str = "cluster", count: int = 1, family: int = 4
    ) -> list[Outcome]:
        probe = self.probe(host, service, to, family)
        return run_probes(self.cluster, [probe] * count, DEADLINE)

    def answerers(
        self, host: str, service: LabService, to: str = "cluster", count: int = 6, family: int = 4
    ) -> set[str]:
        return {outcome.by or outcome.kind.value for outcome in self.ask(host, service, to, count, family)}

    def probe(self, host: str, service: LabService, to: str, family: int, protocol: str = "TCP") -> Probe:
        if to == "nodeport":
            return Probe(host, HOSTS["n1"].address(family), service.node_port, protocol)
        return Probe(host, service.address(to, family), service.ports[0], protocol)

    def flow(
        self, host: str, service: LabService, to: str = "cluster", family: int = 4, protocol: str = "TCP"
    ) -> AbortableFlow:
        return AbortableFlow(self.cluster, self.probe(host, service, to, family, protocol), DEADLINE)

    def in_node(self, *command: str) -> str:
        return self.cluster["n1"].run(command)


lab = harness.lab
