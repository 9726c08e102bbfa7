"""Objects of the source into trackers and node state, changes of either into requests for a sync."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pointsman.model.addresses import Family, address_text
from pointsman.model.objects import (
    Delete,
    EndpointSlice,
    KubeObject,
    Node,
    Service,
    ServiceCIDR,
    SourceEvent,
    Synced,
    Upsert,
)
from pointsman.model.service_findings import ServiceFindings
from pointsman.model.tracker import Tracker
from pointsman.node.family import FamilyProxy
from pointsman.node.health import ProxyHealth
from pointsman.node.start import Start
from pointsman.node.state import NodeState
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics
from pointsman.report.labels import ServiceLabels

_log = get_log(__name__)


class ObjectHandler:
    """Takes every event of one source, in order."""

    def __init__(
        self,
        families: Mapping[Family, FamilyProxy],
        node: NodeState,
        start: Start,
        health: ProxyHealth,
        service_findings: ServiceFindings,
        metrics: Metrics,
    ) -> None:
        self.labels = ServiceLabels()
        self._families = families
        self._node, self._start, self._health = node, start, health
        self._service_findings = service_findings
        self._metrics = metrics

    def handle(self, event: SourceEvent) -> None:
        """Take one event; a bug met in one object never keeps the others from being served."""
        try:
            self._handle(event)
        except Exception as error:  # noqa: BLE001 see above
            _log.exception("Cannot handle an object, ignoring it", err=error, event=event)
            kind = type(event.object) if isinstance(event, Upsert) else event.kind
            self._metrics.objects.skipped.labels(kind=kind.__name__, reason="InternalError").inc()

    def _handle(self, event: SourceEvent) -> None:
        match event:
            case Synced(kind=kind):
                self._start.on_listed(kind)
            case Upsert(object=Service() as service):
                self._metrics.objects.service_changes.inc(len(self._families))
                self._service_findings.upsert_service(service)
                self.labels.upsert(service)
                self._track(lambda tracker: tracker.upsert_service(service))
            case Upsert(object=EndpointSlice() as endpoint_slice):
                self._service_findings.discard_slice(endpoint_slice.metadata.key)
                self._track(lambda tracker: tracker.upsert_slice(endpoint_slice))
                self._count_endpoint_change(endpoint_slice.metadata.key)
            case Upsert(object=Node() as node):
                self._set_node(node.metadata.name, node)
            case Upsert(object=ServiceCIDR() as service_cidr):
                key, cidrs = service_cidr.metadata.key, service_cidr.spec.cidrs or ()
                self._request_if(self._node.set_service_ranges(key, cidrs))
            case Delete(kind=kind, key=key):
                self._delete(kind, key)

    def _delete(self, kind: type[KubeObject], key: str) -> None:
        if kind is Service:
            self._metrics.objects.service_changes.inc(len(self._families))
            self._service_findings.delete_service(key)
            self.labels.delete(key)
            self._track(lambda tracker: tracker.delete_service(key))
        elif kind is EndpointSlice:
            self._count_endpoint_change(key)
            self._service_findings.discard_slice(key)
            self._track(lambda tracker: tracker.delete_slice(key))
        elif kind is Node:
            self._set_node(key, None)
        else:
            self._request_if(self._node.set_service_ranges(key, None))

    def _count_endpoint_change(self, slice_key: str) -> None:
        """Count changes of tracked slices only; kube-proxy counts none of another family, of names, or without a Service."""
        if any(family.tracker.slices.find_service(slice_key) for family in self._families.values()):
            self._metrics.objects.endpoint_changes.inc()

    def _track(self, change: Callable[[Tracker], bool]) -> None:
        for family in self._families.values():
            if change(family.tracker):
                family.request()

    def _request_if(self, may_change_rules: bool) -> None:
        if may_change_rules:
            for family in self._families.values():
                family.request()

    def _set_node(self, name: str, node: Node | None) -> None:
        """Follow the own Node; when it is deleted, the rules stay and /healthz fails."""
        if name != self._node.name:
            return
        self._health.node = node
        if node is None:
            _log.warning("The Node was deleted, keeping its last addresses and zone", node=name)
            return
        before = self._node.facts
        self._request_if(self._node.set_node(node))
        facts = self._node.facts
        if facts != before:
            addresses = ", ".join(address_text(address) for address in facts.ips)
            _log.info("Node changed", node=name, addresses=addresses, zone=facts.zone)
        self._start.on_node_update()
