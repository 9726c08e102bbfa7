"""Objects of one IP family in, changed service ports out.

An event only parses its own object and marks its Service dirty. The slices of a dirty Service are merged once, by the
next `take` or the next reader of the states, however many events came before. Only differences from the last `take` are
handed out: an add followed by a delete is no change. A tracker has no access to the kernel or a clock and belongs to one
thread; the values that it hands out are immutable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

import msgspec

from pointsman.model.addresses import Family
from pointsman.model.balancing import DEFAULT_BALANCING, BalancingDefaults
from pointsman.model.endpoint import Endpoint, Identity
from pointsman.model.findings import Code, Finding, ObjectReference, clip, limit_findings
from pointsman.model.objects import SERVICE_NAME_LABEL, TRIGGER_TIME_ANNOTATION, EndpointSlice, Meta, Service
from pointsman.model.service import (
    NO_ADDRESSES,
    ServiceAddresses,
    ServicePort,
    ServicePortName,
    parse_service_ports,
)
from pointsman.model.shares import EndpointShares, ShareMode
from pointsman.model.slices import PortKey, merge_endpoints, parse_slice_endpoints

MAX_MERGED_PER_STEP = 20_000
"""Endpoints: about 20 ms of CPU time."""
_PORT_COST = 10
"""A service port costs as much as this number of endpoints."""

OnFinding = Callable[[Meta, Finding], None]
"""Called with the metadata of an object and one finding about it."""


class PortState(msgspec.Struct, frozen=True, gc=False):
    """A service port and all its endpoints, sorted and without duplicates."""

    port: ServicePort
    endpoints: tuple[Endpoint, ...]


class _SliceState(msgspec.Struct, frozen=True, gc=False):
    """Endpoints of one slice, by port of its Service."""

    service_key: str
    ports: tuple[tuple[PortKey, tuple[Endpoint, ...]], ...]


class Changes(msgspec.Struct, frozen=True):
    """Differences since the last `take`; None stands for a service port that was removed."""

    states: Mapping[ServicePortName, PortState | None]
    trigger_times: Mapping[str, tuple[float, ...]] = {}
    """By Service key, when (Unix seconds) these endpoint changes happened in the cluster."""


class Tracker:
    """Current service ports and endpoints of one IP family."""

    def __init__(
        self,
        family: Family,
        node_name: str,
        *,
        allow_external_ips: bool = True,
        balancing: BalancingDefaults = DEFAULT_BALANCING,
        started_at: float = 0.0,
        on_finding: OnFinding | None = None,
    ) -> None:
        self.family = family
        self.node_name = node_name
        self._allow_external_ips = allow_external_ips
        self._started_at = started_at
        self._on_finding = on_finding
        self._services: dict[str, tuple[ServicePort, ...]] = {}
        self._addresses: dict[str, ServiceAddresses] = {}
        """Of Services that have any besides cluster IPs."""
        self._slices: dict[str, _SliceState] = {}
        self._slice_keys: dict[str, tuple[str, ...]] = {}
        """By Service. Most have one slice, and a tuple takes a quarter of the memory of a dictionary."""
        self._states: dict[ServicePortName, PortState] = {}
        self._dirty: set[str] = set()
        """Keys of the Services whose states are out of date."""
        self._merging_key = ""
        """The Service that is being merged, unless it was marked dirty again: then it is merged from the beginning."""
        self._merging_ports: list[ServicePort] = []
        self._merging_lists: dict[PortKey, list[tuple[Endpoint, ...]]] = {}
        self._merging_texts: dict[bytes, str] = {}
        self._before: dict[ServicePortName, PortState | None] = {}
        """States at the last `take`, of service ports whose state was replaced since."""
        self._changed_services: set[str] = set()
        self._changed_endpoints: set[str] = set()
        self._trigger_times: dict[str, list[float]] = {}
        self._health_checked: set[ServicePortName] = set()
        self._balancing = balancing
        self._shares = EndpointShares(balancing)
        self._taken = False

    @property
    def states(self) -> Mapping[ServicePortName, PortState]:
        """Current service ports with their endpoints."""
        self._merge_dirty()
        return self._states

    @property
    def share_modes(self) -> Mapping[ServicePortName, ShareMode]:
        """Service ports whose endpoints have shares that are adjusted continuously."""
        return self._shares.modes

    def warming_up(self, name: ServicePortName) -> frozenset[Identity]:
        """Endpoints in slow start, below their full share."""
        self._merge_dirty()
        return self._shares.warming_up(name)

    def set_shares(
        self, name: ServicePortName, shares: Mapping[Identity, int], settled: Iterable[Identity] = ()
    ) -> bool:
        """Replace the shares of the endpoints of a service port; return whether any differs."""
        self._merge_dirty()
        changed = self._shares.set(name, shares, settled)
        if changed:
            self._mark_dirty(name.key)
        return changed

    @property
    def pending(self) -> int:
        """Number of service ports that changed since the last `take`."""
        return len(self.pending_names)

    @property
    def pending_names(self) -> frozenset[ServicePortName]:
        self._merge_dirty()
        return frozenset(self._before)

    @property
    def pending_services(self) -> int:
        return len(self._changed_services)

    @property
    def pending_endpoints(self) -> int:
        return len(self._changed_endpoints)

    def upsert_service(self, service: Service) -> bool:
        """Add or replace a Service; return whether a field that a proxy uses changed."""
        key = service.metadata.key
        parsed = parse_service_ports(
            service,
            self.family,
            allow_external_ips=self._allow_external_ips,
            known=self._addresses.get(key, NO_ADDRESSES),
        )
        if parsed.addresses:
            self._addresses[key] = parsed.addresses
        else:
            self._addresses.pop(key, None)
        self._report("Service", service.metadata, parsed.findings)
        return self._replace_service(key, parsed.ports)

    def delete_service(self, key: str) -> bool:
        self._addresses.pop(key, None)
        return self._replace_service(key, {})

    def upsert_slice(self, endpoint_slice: EndpointSlice) -> bool:
        """Add or replace an EndpointSlice; return whether endpoints of a known Service may have changed."""
        meta = endpoint_slice.metadata
        key = meta.key
        service_name = meta.label(SERVICE_NAME_LABEL)
        if not service_name or endpoint_slice.address_type != self.family.value:
            return self.delete_slice(key)
        service_key = sys.intern(f"{meta.namespace}/{service_name}")
        endpoints, findings = parse_slice_endpoints(endpoint_slice, self.family, self.node_name)
        self._report("EndpointSlice", meta, findings)
        known = self._slices.get(key)
        found = _SliceState(service_key, tuple(endpoints.items()))
        if found == known:
            return False
        moved = False
        if known is None or known.service_key != service_key:
            moved = self.delete_slice(key)
            self._slice_keys[service_key] = (*self._slice_keys.get(service_key, ()), key)
        self._slices[key] = found
        changed = self._mark_endpoints_dirty(service_key)
        if changed:
            self._note_trigger_time(service_key, meta)
        return changed or moved

    def delete_slice(self, key: str) -> bool:
        known = self._slices.pop(key, None)
        if known is None:
            return False
        service_key = known.service_key
        rest = tuple(one for one in self._slice_keys.pop(service_key) if one != key)
        if rest:
            self._slice_keys[service_key] = rest
        # The changes that these times belong to may never be written; kube-proxy drops them, too.
        self._trigger_times.pop(service_key, None)
        return self._mark_endpoints_dirty(service_key)

    def has_slice(self, key: str) -> bool:
        """Whether the slice is of this family and belongs to a Service."""
        return key in self._slices

    def take(self) -> Changes:
        """Return the differences since the last call; the caller keeps them until the kernel accepted them."""
        self._merge_dirty()
        self._taken = True
        states: dict[ServicePortName, PortState | None] = {}
        for name, before in self._before.items():
            now = self._states.get(name)
            if now != before:
                states[name] = now
        changes = Changes(states, {key: tuple(times) for key, times in self._trigger_times.items()})
        self._before = {}
        self._changed_services = set()
        self._changed_endpoints = set()
        self._trigger_times = {}
        return changes

    def restart(self) -> None:
        """Discard everything derived from objects, so that the next `take` returns every service port.

        For a receiver that starts afresh, after an error that may have left any of this half updated.
        """
        self._states, self._before, self._health_checked = {}, {}, set()
        self._shares = EndpointShares(self._balancing)
        for ports in self._services.values():
            for port in ports:
                self._shares.update_mode(port)
        self._dirty, self._merging_key = set(self._services), ""

    def slice_ports(self, service_key: str) -> dict[str, dict[PortKey, int]]:
        """The slices of a Service, each with the number of endpoints per port, for explanations."""
        return {
            key: {port: len(endpoints) for port, endpoints in self._slices[key].ports}
            for key in self._slice_keys.get(service_key, ())
        }

    def local_ready_counts(self) -> Iterator[tuple[ServicePort, int]]:
        """A service port of every Service with a health check node port, and the number of its ready local addresses.

        An address counts once per Service, however many of its ports use it.
        """
        self._merge_dirty()
        found: dict[str, tuple[ServicePort, set[bytes]]] = {}
        for name in self._health_checked:
            state = self._states[name]
            _, addresses = found.setdefault(name.key, (state.port, set()))
            addresses.update(e.address for e in state.endpoints if e.local and e.ready)
        for port, addresses in found.values():
            yield port, len(addresses)

    def _replace_service(self, key: str, ports: dict[ServicePortName, ServicePort]) -> bool:
        known = self._services.get(key, ())
        found = tuple(ports[name] for name in sorted(ports))
        if found == known:
            return False
        for port in known:
            if port.name not in ports:
                self._set_state(port.name, None)
                self._shares.forget(port.name)
        for port in found:
            self._shares.update_mode(port)
        if found:
            self._services[key] = found
        else:
            del self._services[key]
        self._mark_dirty(key)
        self._changed_services.add(key)
        return True

    def _mark_endpoints_dirty(self, service_key: str) -> bool:
        """Return whether the Service is known: endpoints without one change nothing."""
        self._changed_endpoints.add(service_key)
        if service_key not in self._services:
            return False
        self._mark_dirty(service_key)
        return True

    def merge_step(self, limit: int = MAX_MERGED_PER_STEP) -> bool:
        """Merge dirty Services until about `limit` endpoints are merged; return whether any Service is left.

        For callers on the event loop, which let others run between two steps.
        """
        merged = 0
        while self._dirty and merged < limit:
            if not self._merging_key:
                key = next(iter(self._dirty))
                self._merging_ports = list(reversed(self._services.get(key, ())))
                self._merging_lists, self._merging_texts = self._endpoint_lists(key), {}
                self._merging_key = key
            if self._merging_ports:
                merged += self._merge_port(self._merging_ports[-1])
                self._merging_ports.pop()
            if not self._merging_ports:
                self._dirty.discard(self._merging_key)
                self._merging_lists, self._merging_texts = {}, {}
                self._merging_key = ""
        return bool(self._dirty)

    def _merge_port(self, port: ServicePort) -> int:
        """Replace the state of a service port; return the cost."""
        found = self._merging_lists.get((port.name.port, port.name.protocol), ())
        if len(found) == 1:
            endpoints = found[0]
        else:
            endpoints = merge_endpoints(found, self._merging_texts) if found else ()
        self._set_state(port.name, PortState(port, self._apply_shares(port.name, endpoints)))
        return len(endpoints) + _PORT_COST

    def _mark_dirty(self, key: str) -> None:
        self._dirty.add(key)
        if key == self._merging_key:
            self._merging_key = ""

    def _merge_dirty(self) -> None:
        while self._dirty:
            self.merge_step(sys.maxsize)

    def _endpoint_lists(self, service_key: str) -> dict[PortKey, list[tuple[Endpoint, ...]]]:
        """The endpoints of a Service by port, one list from each slice that has any."""
        lists: dict[PortKey, list[tuple[Endpoint, ...]]] = {}
        for key in self._slice_keys.get(service_key, ()):
            for port, endpoints in self._slices[key].ports:
                if endpoints:
                    lists.setdefault(port, []).append(endpoints)
        return lists

    def _apply_shares(self, name: ServicePortName, endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        if name not in self._shares.modes:
            return endpoints
        before = self._states.get(name)
        known = before.endpoints if before is not None else ()
        self._shares.update_endpoints(name, known, endpoints, serving=self._taken)
        return self._shares.apply(name, endpoints)

    def _set_state(self, name: ServicePortName, now: PortState | None) -> None:
        before = self._states.get(name)
        if now == before:
            return
        self._before.setdefault(name, before)
        if now is None:
            del self._states[name]
        else:
            self._states[name] = now
        if now is not None and now.port.service.health_check_node_port:
            self._health_checked.add(name)
        else:
            self._health_checked.discard(name)

    def _note_trigger_time(self, service_key: str, meta: Meta) -> None:
        text = meta.annotation(TRIGGER_TIME_ANNOTATION)
        if not text:
            return
        try:
            when = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            parameters = {"annotation": TRIGGER_TIME_ANNOTATION, "value": clip(text)}
            self._report("EndpointSlice", meta, [Finding(Code.BAD_TRIGGER_TIME, parameters=parameters)])
            return
        if when >= self._started_at:
            self._trigger_times.setdefault(service_key, []).append(when)

    def _report(self, kind: str, meta: Meta, findings: list[Finding]) -> None:
        if self._on_finding is not None and findings:
            reference = ObjectReference(kind, meta.key)
            for finding in limit_findings(findings):
                self._on_finding(meta, finding.about(reference))
