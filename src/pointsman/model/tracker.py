"""Objects of one IP family in, changed service ports out.

An event only parses its own object and marks its Service dirty. The slices of a dirty Service are merged once, by the
next `take` or the next reader of the states, however many events came before. Only differences from the last `take` are
handed out: an add followed by a delete is no change. A tracker has no access to the kernel or a clock and belongs to one
thread; the values that it returns are immutable.
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
from pointsman.model.service import ServicePort, ServicePortName
from pointsman.model.service_parsing import NO_ADDRESSES, ServiceAddresses, parse_service_ports
from pointsman.model.shares import EndpointShares
from pointsman.model.slices import PortKey, SliceIndex, merge_endpoints, parse_slice_endpoints

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


class Changes(msgspec.Struct, frozen=True):
    """Differences since the last `take`; None is a service port that was removed."""

    states: Mapping[ServicePortName, PortState | None]
    trigger_times: Mapping[str, tuple[float, ...]] = {}
    """By Service key, when (Unix seconds) these endpoint changes happened in the cluster."""


class PortStates:
    """Current states of the service ports, and which of them differ from the last `take`."""

    def __init__(self) -> None:
        self.current: dict[ServicePortName, PortState] = {}
        self.before: dict[ServicePortName, PortState | None] = {}
        """States at the last `take`, of service ports whose state was replaced since."""
        self._health_checked: set[ServicePortName] = set()

    def replace(self, name: ServicePortName, now: PortState | None) -> None:
        before = self.current.get(name)
        if now == before:
            return
        self.before.setdefault(name, before)
        if now is None:
            del self.current[name]
        else:
            self.current[name] = now
        if now is not None and now.port.service.health_check_node_port:
            self._health_checked.add(name)
        else:
            self._health_checked.discard(name)

    def take(self) -> dict[ServicePortName, PortState | None]:
        before, self.before = self.before, {}
        changed = ((name, self.current.get(name), old) for name, old in before.items())
        return {name: now for name, now, old in changed if now != old}

    def count_local_ready(self) -> Iterator[tuple[ServicePort, int]]:
        """Yield a service port of every Service with a health check node port, and the number of its ready local addresses.

        An address counts once per Service, however many of its ports use it.
        """
        found: dict[str, tuple[ServicePort, set[bytes]]] = {}
        for name in self._health_checked:
            state = self.current[name]
            _, addresses = found.setdefault(name.key, (state.port, set()))
            addresses.update(e.address for e in state.endpoints if e.state.local and e.state.ready)
        for port, addresses in found.values():
            yield port, len(addresses)


class _Merge(msgspec.Struct):
    """A Service whose ports are being merged one after the other."""

    key: str
    ports: list[ServicePort]
    """Those that are left, the next one last."""
    endpoints: dict[PortKey, list[tuple[Endpoint, ...]]]
    texts: dict[bytes, str] = {}
    """Text of each address: the ports of a Service have the same addresses."""


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
        self.slices = SliceIndex()
        self.shares = EndpointShares(balancing)
        """Shares that are adjusted continuously; `set_shares` replaces them."""
        self.changed_services: set[str] = set()
        self.changed_endpoints: set[str] = set()
        """Keys of the Services with changes since the last `take`, also of Services that are not known."""
        self._node_name = node_name
        self._allow_external_ips = allow_external_ips
        self._balancing = balancing
        self._started_at = started_at
        self._on_finding = on_finding
        self._services: dict[str, tuple[ServicePort, ...]] = {}
        self._addresses: dict[str, ServiceAddresses] = {}
        """Of Services that have any besides cluster IPs."""
        self._states = PortStates()
        self._dirty: set[str] = set()
        """Keys of the Services whose states are out of date, without the one that is being merged."""
        self._merging: _Merge | None = None
        """Dropped when its Service is marked dirty again: then it is merged from the beginning."""
        self._trigger_times: dict[str, list[float]] = {}
        self._taken = False

    @property
    def states(self) -> Mapping[ServicePortName, PortState]:
        """Current service ports with their endpoints."""
        return self._merge_all().current

    @property
    def pending_names(self) -> frozenset[ServicePortName]:
        """Service ports that changed since the last `take`."""
        return frozenset(self._merge_all().before)

    def count_local_ready(self) -> Iterator[tuple[ServicePort, int]]:
        return self._merge_all().count_local_ready()

    def find_warming_up(self, name: ServicePortName) -> frozenset[Identity]:
        """Return the endpoints in slow start, below their full share."""
        self._merge_all()
        return self.shares.find_warming_up(name)

    def set_shares(
        self, name: ServicePortName, shares: Mapping[Identity, int], settled: Iterable[Identity] = ()
    ) -> bool:
        """Replace the shares of the endpoints of a service port; return whether any differs."""
        self._merge_all()
        changed = self.shares.set(name, shares, settled)
        if changed:
            self._mark_dirty(name.key)
        return changed

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
        """Add or replace an EndpointSlice; return whether a sync should follow.

        It should where endpoints of a known Service may have changed. As in kube-proxy every version of a slice with a trigger
        time counts as a change, which a sync ends: also one that changes nothing here, or whose Service is not known.
        """
        meta = endpoint_slice.metadata
        key = meta.key
        service_name = meta.label(SERVICE_NAME_LABEL)
        if not service_name or endpoint_slice.address_type != self.family.value:
            return self.delete_slice(key)
        service_key = sys.intern(f"{meta.namespace}/{service_name}")
        endpoints, findings = parse_slice_endpoints(endpoint_slice, self.family, self._node_name)
        self._report("EndpointSlice", meta, findings)
        former = self.slices.find_service(key)
        moved = former not in (None, service_key) and self.delete_slice(key)
        changed = self.slices.replace(key, service_key, endpoints) and self._mark_endpoints_dirty(service_key)
        noted = self._note_trigger_time(service_key, meta)
        return changed or moved or noted

    def delete_slice(self, key: str) -> bool:
        service_key = self.slices.remove(key)
        if service_key is None:
            return False
        # The changes that these times belong to may never be written; kube-proxy drops them, too.
        self._trigger_times.pop(service_key, None)
        return self._mark_endpoints_dirty(service_key)

    def take(self) -> Changes:
        """Return the differences since the last call; the caller keeps them until the kernel accepted them."""
        states = self._merge_all().take()
        self._taken = True
        times, self._trigger_times = self._trigger_times, {}
        self.changed_services, self.changed_endpoints = set(), set()
        return Changes(states, {key: tuple(found) for key, found in times.items()})

    def restart(self) -> None:
        """Discard everything derived from objects, so that the next `take` returns every service port.

        For a receiver that starts afresh, after an error that may have left any of this half updated.
        """
        self._states = PortStates()
        self.shares = EndpointShares(self._balancing)
        for ports in self._services.values():
            for port in ports:
                self.shares.update_mode(port)
        self._dirty, self._merging = set(self._services), None

    def merge_step(self, limit: int = MAX_MERGED_PER_STEP) -> bool:
        """Merge dirty Services until about `limit` endpoints are merged; return whether any Service is left.

        For callers on the event loop, which let others run between two steps.
        """
        merged = 0
        while (self._dirty or self._merging) and merged < limit:
            merge = self._merging
            if merge is None:
                key = self._dirty.pop()
                ports = list(reversed(self._services.get(key, ())))
                merge = self._merging = _Merge(key, ports, self.slices.list_endpoints(key))
            if merge.ports:
                merged += self._merge_port(merge, merge.ports[-1])
                merge.ports.pop()
            if not merge.ports:
                self._merging = None
        return bool(self._dirty or self._merging)

    def _merge_all(self) -> PortStates:
        """Merge what is dirty; return the states."""
        self.merge_step(sys.maxsize)
        return self._states

    def _merge_port(self, merge: _Merge, port: ServicePort) -> int:
        """Replace the state of a service port; return the cost."""
        name = port.name
        found = merge.endpoints.get((name.port, name.protocol), ())
        if len(found) == 1:
            endpoints = found[0]
        else:
            endpoints = merge_endpoints(found, merge.texts) if found else ()
        if name in self.shares.modes:
            before = self._states.current.get(name)
            known = before.endpoints if before is not None else ()
            self.shares.update_endpoints(name, known, endpoints, serving=self._taken)
            endpoints = self.shares.apply(name, endpoints)
        self._states.replace(name, PortState(port, endpoints))
        return len(endpoints) + _PORT_COST

    def _replace_service(self, key: str, ports: dict[ServicePortName, ServicePort]) -> bool:
        known = self._services.get(key, ())
        found = tuple(ports[name] for name in sorted(ports))
        if found == known:
            return False
        for port in known:
            if port.name not in ports:
                self._states.replace(port.name, None)
                self.shares.forget(port.name)
        for port in found:
            self.shares.update_mode(port)
        if found:
            self._services[key] = found
        else:
            del self._services[key]
        self._mark_dirty(key)
        self.changed_services.add(key)
        return True

    def _mark_endpoints_dirty(self, service_key: str) -> bool:
        """Return whether the Service is known: endpoints without one change nothing."""
        self.changed_endpoints.add(service_key)
        if service_key not in self._services:
            return False
        self._mark_dirty(service_key)
        return True

    def _mark_dirty(self, key: str) -> None:
        self._dirty.add(key)
        if self._merging is not None and self._merging.key == key:
            self._merging = None

    def _note_trigger_time(self, service_key: str, meta: Meta) -> bool:
        """Return whether the slice has one that counts: those from before the start do not."""
        text = meta.annotation(TRIGGER_TIME_ANNOTATION)
        if not text:
            return False
        try:
            when = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            parameters = {"annotation": TRIGGER_TIME_ANNOTATION, "value": clip(text)}
            self._report("EndpointSlice", meta, [Finding(Code.BAD_TRIGGER_TIME, parameters=parameters)])
            return False
        if when < self._started_at:
            return False
        self._trigger_times.setdefault(service_key, []).append(when)
        return True

    def _report(self, kind: str, meta: Meta, findings: list[Finding]) -> None:
        if self._on_finding is not None and findings:
            reference = ObjectReference(kind, meta.key)
            for finding in limit_findings(findings):
                self._on_finding(meta, finding.about(reference))
