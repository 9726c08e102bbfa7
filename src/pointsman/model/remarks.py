"""What is worth remembering of objects that leave no trace in the trackers: why they, or parts of them, are not used.

A Service that is none of our business (headless, ExternalName, another proxy's) is dropped on arrival, and so is a
bad address. Somebody who asks later why nothing answers needs the reason; it costs a few words per odd object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.model.addresses import address_from_text
from pointsman.model.objects import SERVICE_NAME_LABEL, Meta, Service
from pointsman.model.problem import Problem
from pointsman.model.service import SkipReason, find_skip_reason

IP_MODE_PROXY = "IPModeProxy"
NO_BALANCER_ADDRESS = "NoLoadBalancerAddress"

_NOT_OURS = {
    SkipReason.OTHER_PROXY: "another service proxy is named by its label",
    SkipReason.EXTERNAL_NAME: "type is ExternalName",
    SkipReason.HEADLESS: "headless (clusterIP None)",
    SkipReason.NO_CLUSTER_IP: "no clusterIP yet",
}


class Remarks:
    """Remarks by Service key (`namespace/name`), kept current by the events that caused them."""

    def __init__(self) -> None:
        self._services: dict[str, tuple[Problem, ...]] = {}
        self._problems: dict[str, dict[tuple[str, str], dict[Problem, None]]] = {}
        self._slice_service: dict[str, str] = {}

    def upsert_service(self, service: Service) -> None:
        """To be called before the trackers see the object, whose problems are reported again."""
        key = service.metadata.key
        self.delete_service(key)
        remarks = tuple(_service_remarks(service))
        if remarks:
            self._services[key] = remarks

    def delete_service(self, key: str) -> None:
        self._services.pop(key, None)
        self._forget(key, ("Service", key))

    def slice_changed(self, key: str) -> None:
        """A slice arrived or went: what was wrong with it before is discarded."""
        service = self._slice_service.pop(key, None)
        if service is not None:
            self._forget(service, ("EndpointSlice", key))

    def problem(self, kind: str, meta: Meta, problem: Problem) -> None:
        """Something of an object was left out; trackers of two families may say the same."""
        service = meta.key
        if kind == "EndpointSlice":
            service = f"{meta.namespace}/{meta.label(SERVICE_NAME_LABEL) or ''}"
            self._slice_service[meta.key] = service
        known = self._problems.setdefault(service, {})
        known.setdefault((kind, meta.key), {})[problem] = None

    def of(self, service_key: str) -> tuple[Problem, ...]:
        known = self._problems.get(service_key, {}).values()
        return (*self._services.get(service_key, ()), *(found for problems in known for found in problems))

    def all(self) -> Mapping[str, tuple[Problem, ...]]:
        """A copy that stays as it is."""
        return {key: self.of(key) for key in self._services.keys() | self._problems.keys()}

    def _forget(self, service: str, source: tuple[str, str]) -> None:
        known = self._problems.get(service)
        if known is not None and known.pop(source, None) is not None and not known:
            del self._problems[service]


def _service_remarks(service: Service) -> Iterable[Problem]:
    skipped = find_skip_reason(service)
    if skipped is not None:
        yield Problem(skipped.value, _NOT_OURS[skipped])
        return
    if service.spec.type != "LoadBalancer":
        return
    status = service.status.load_balancer
    ingress = (status.ingress if status is not None else None) or ()
    if not any(entry.ip for entry in ingress):
        yield Problem(NO_BALANCER_ADDRESS, "status.loadBalancer.ingress holds no IP address")
    for entry in ingress:
        if entry.ip and entry.ip_mode not in (None, "VIP"):
            address = address_from_text(entry.ip) or b""
            yield Problem(IP_MODE_PROXY, f"{entry.ip} has ipMode {entry.ip_mode}", address)
