"""Findings about objects that leave no trace in the trackers: why they, or parts of them, are not used.

A Service that this proxy does not serve (headless, ExternalName, another proxy's) is dropped on arrival, and so is a
bad address. `explain` needs the reason later; it costs a few bytes per odd object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.model.addresses import address_from_text, address_text
from pointsman.model.findings import Code, Finding, ObjectReference, Severity
from pointsman.model.objects import SERVICE_NAME_LABEL, Meta, Service
from pointsman.model.service_parsing import find_skip_reason


class ServiceFindings:
    """Findings by Service key (`namespace/name`), kept current by the events that caused them."""

    def __init__(self) -> None:
        self._reported: dict[str, dict[ObjectReference, dict[Finding, None]]] = {}
        self._slice_service: dict[str, str] = {}

    def upsert_service(self, service: Service) -> None:
        """Discard what was known; call this before the trackers, which report again, see the object."""
        key = service.metadata.key
        self.delete_service(key)
        reference = ObjectReference("Service", key)
        for finding in _check_service(service):
            self._keep(key, finding.about(reference))

    def delete_service(self, key: str) -> None:
        self._discard(key, ObjectReference("Service", key))

    def discard_slice(self, key: str) -> None:
        """Discard the findings about a slice that arrived or was deleted."""
        service = self._slice_service.pop(key, None)
        if service is not None:
            self._discard(service, ObjectReference("EndpointSlice", key))

    def add(self, meta: Meta, finding: Finding) -> None:
        """Keep a finding of a tracker; those of two families may report the same one."""
        service = meta.key
        if finding.object.kind == "EndpointSlice":
            service = f"{meta.namespace}/{meta.label(SERVICE_NAME_LABEL) or ''}"
            self._slice_service[meta.key] = service
        self._keep(service, finding)

    def of(self, service_key: str) -> tuple[Finding, ...]:
        return tuple(found for findings in self._reported.get(service_key, {}).values() for found in findings)

    def all(self) -> Mapping[str, tuple[Finding, ...]]:
        """Return an independent copy."""
        return {key: self.of(key) for key in self._reported}

    def _keep(self, service: str, finding: Finding) -> None:
        self._reported.setdefault(service, {}).setdefault(finding.object, {})[finding] = None

    def _discard(self, service: str, reference: ObjectReference) -> None:
        known = self._reported.get(service)
        if known is not None and known.pop(reference, None) is not None and not known:
            del self._reported[service]


def _check_service(service: Service) -> Iterable[Finding]:
    skipped = find_skip_reason(service)
    if skipped is not None:
        yield Finding(skipped, Severity.ERROR)
        return
    if service.spec.type != "LoadBalancer":
        return
    status = service.status.load_balancer
    ingress = (status.ingress if status is not None else None) or ()
    if not any(entry.ip for entry in ingress):
        yield Finding(Code.NO_LOAD_BALANCER_ADDRESS)
    for entry in ingress:
        if entry.ip and entry.ip_mode not in (None, "VIP"):
            address = address_from_text(entry.ip)
            text = entry.ip if address is None else address_text(address)
            yield Finding(Code.IP_MODE_PROXY, parameters={"address": text, "ipMode": entry.ip_mode or ""})
