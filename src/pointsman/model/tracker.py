"""Objects of one IP family in, dirty service ports out.

The tracker holds the current state of every service port and remembers, for those that differ from what the last
`take` handed out, what it was then: an add followed by a delete is nothing, an update without effect costs
nothing. It knows no kernel and no clock and lives on one thread; what it hands out is immutable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

import msgspec

from pointsman.model.addresses import Family
from pointsman.model.balancing import DEFAULT_BALANCING, BalancingDefaults
from pointsman.model.endpoint import Endpoint, Identity
from pointsman.model.objects import SERVICE_NAME_LABEL, TRIGGER_TIME_ANNOTATION, EndpointSlice, Meta, Service
from pointsman.model.problem import Problem, told
from pointsman.model.service import ServicePort, ServicePortName, parse_service_ports
from pointsman.model.shares import EndpointShares, ShareMode
from pointsman.model.slices import PortKey, merged, parse_slice_endpoints

OnProblem = Callable[[str, Meta, Problem], None]
"""Called with kind, metadata and what was left out of an object."""


class PortState(msgspec.Struct, frozen=True, gc=False):
    """A service port and all its endpoints, sorted and without duplicates."""

    port: ServicePort
    endpoints: tuple[Endpoint, ...]


class _SliceState(msgspec.Struct, frozen=True, gc=False):
    """What one slice brings to the ports of its Service."""

    key: str
    ports: tuple[tuple[PortKey, tuple[Endpoint, ...]], ...]


class Changes(msgspec.Struct, frozen=True):
    """What differs since the last `take`; None stands for a service port that is gone."""

    states: Mapping[ServicePortName, PortState | None]
    trigger_times: Mapping[str, tuple[float, ...]] = {}
    """Per Service key, when (Unix seconds) the endpoint changes in here happened in the cluster."""
    complete: bool = False
    """`states` is all there is: a service port not in it is gone."""


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
        on_problem: OnProblem | None = None,
    ) -> None:
        self.family = family
        self.node_name = node_name
        self._allow_external_ips = allow_external_ips
        self._started_at = started_at
        self._on_problem = on_problem
        self._services: dict[str, tuple[ServicePort, ...]] = {}
        self._slices: dict[str, tuple[_SliceState, ...]] = {}
        """By Service: most have one slice, for which a dictionary each would be the larger part of all this."""
        self._slice_service: dict[str, str] = {}
        self._states: dict[ServicePortName, PortState] = {}
        self._before: dict[ServicePortName, PortState | None] = {}
        self._changed_services: set[str] = set()
        self._changed_endpoints: set[str] = set()
        self._trigger_times: dict[str, list[float]] = {}
        self._health_checked: set[ServicePortName] = set()
        self._shares = EndpointShares(balancing)
        self._taken = False

    @property
    def states(self) -> Mapping[ServicePortName, PortState]:
        return self._states

    @property
    def share_modes(self) -> Mapping[ServicePortName, ShareMode]:
        """Service ports whose endpoints have shares that change by themselves."""
        return self._shares.wishes

    def warming_up(self, name: ServicePortName) -> frozenset[Identity]:
        """Endpoints that start slowly and have not got their full share yet."""
        return self._shares.warming_up(name)

    def set_shares(
        self, name: ServicePortName, shares: Mapping[Identity, int], settled: Iterable[Identity] = ()
    ) -> bool:
        """Other shares for the endpoints of a service port; True when that changes something."""
        self._shares.set(name, shares, settled)
        state = self._states.get(name)
        return self._refresh(name, state.port if state is not None else None)

    @property
    def pending(self) -> int:
        """Service ports that changed since the last `take`."""
        return len(self._before)

    @property
    def pending_names(self) -> frozenset[ServicePortName]:
        return frozenset(self._before)

    @property
    def pending_services(self) -> int:
        return len(self._changed_services)

    @property
    def pending_endpoints(self) -> int:
        return len(self._changed_endpoints)

    def upsert_service(self, service: Service) -> bool:
        """Take note of a Service; True when something a proxy cares about changed."""
        ports, problems = parse_service_ports(
            service, self.family, allow_external_ips=self._allow_external_ips
        )
        self._report("Service", service.metadata, problems)
        return self._replace_service(service.metadata.key, ports)

    def delete_service(self, key: str) -> bool:
        return self._replace_service(key, {})

    def upsert_slice(self, endpoint_slice: EndpointSlice) -> bool:
        """Take note of an EndpointSlice; True when the endpoints of some service port changed."""
        meta = endpoint_slice.metadata
        key = meta.key
        service_name = meta.label(SERVICE_NAME_LABEL)
        if not service_name or endpoint_slice.address_type != self.family.value:
            return self.delete_slice(key)
        service_key = sys.intern(f"{meta.namespace}/{service_name}")
        moved = False
        if self._slice_service.get(key, service_key) != service_key:
            moved = self.delete_slice(key)
        endpoints, problems = parse_slice_endpoints(endpoint_slice, self.family, self.node_name)
        self._report("EndpointSlice", meta, problems)
        slices = self._slices.get(service_key, ())
        found = _SliceState(key, tuple(endpoints.items()))
        if found in slices:
            return moved
        known = key in self._slice_service
        self._slices[service_key] = (
            tuple(found if one.key == key else one for one in slices) if known else (*slices, found)
        )
        self._slice_service[key] = service_key
        changed = self._endpoints_changed(service_key)
        if changed:
            self._note_trigger_time(service_key, meta)
        return changed or moved

    def delete_slice(self, key: str) -> bool:
        service_key = self._slice_service.pop(key, None)
        if service_key is None:
            return False
        rest = tuple(one for one in self._slices.pop(service_key) if one.key != key)
        if rest:
            self._slices[service_key] = rest
        self._trigger_times.pop(
            service_key, None
        )  # the changes they tell of may never be written; as in kube-proxy
        return self._endpoints_changed(service_key)

    def has_slice(self, key: str) -> bool:
        """Whether the slice is of this family and belongs to a Service."""
        return key in self._slice_service

    def take(self) -> Changes:
        """Hand out what changed and start afresh; the caller keeps it until the kernel accepted it."""
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

    def take_all(self) -> Changes:
        """Everything there is now, for a receiver that cannot trust what it got before."""
        changes = self.take()
        return Changes(dict(self._states), changes.trigger_times, complete=True)

    def slice_ports(self, service_key: str) -> dict[str, dict[PortKey, int]]:
        """The slices of a Service, each with the number of endpoints per port, for explanations."""
        return {
            one.key: {port: len(endpoints) for port, endpoints in one.ports}
            for one in self._slices.get(service_key, ())
        }

    def local_ready_counts(self) -> Iterator[tuple[ServicePort, int]]:
        """A service port of every Service with a health check node port, and how many ready addresses it has here.

        An address counts once per Service, however many of its ports lead there.
        """
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
        if found:
            self._services[key] = found
        else:
            self._services.pop(key, None)
        changed = False
        for name in {port.name for port in known} | ports.keys():
            changed |= self._refresh(name, ports.get(name))
        self._changed_services.add(key)
        return changed

    def _endpoints_changed(self, service_key: str) -> bool:
        self._changed_endpoints.add(service_key)
        changed = False
        for port in self._services.get(service_key, ()):
            changed |= self._refresh(port.name, port)
        return changed

    def _refresh(self, name: ServicePortName, port: ServicePort | None) -> bool:
        before = self._states.get(name)
        now = PortState(port, self._shared(port, before)) if port is not None else None
        if now == before:
            return False
        self._before.setdefault(name, before)
        if now is None:
            del self._states[name]
            self._shares.forget(name)
        else:
            self._states[name] = now
        if now is not None and now.port.health_check_node_port:
            self._health_checked.add(name)
        else:
            self._health_checked.discard(name)
        return True

    def _shared(self, port: ServicePort, before: PortState | None) -> tuple[Endpoint, ...]:
        endpoints = self._endpoints(port.name)
        known = before.endpoints if before is not None else ()
        self._shares.follow(port, known, endpoints, serving=self._taken)
        return self._shares.applied(port.name, endpoints)

    def _endpoints(self, name: ServicePortName) -> tuple[Endpoint, ...]:
        key = (name.port, name.protocol)
        lists = [
            endpoints
            for one in self._slices.get(name.key, ())
            for port, endpoints in one.ports
            if port == key and endpoints
        ]
        if not lists:
            return ()
        return lists[0] if len(lists) == 1 else merged(lists)

    def _note_trigger_time(self, service_key: str, meta: Meta) -> None:
        text = meta.annotation(TRIGGER_TIME_ANNOTATION)
        if not text:
            return
        try:
            when = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            self._report(
                "EndpointSlice",
                meta,
                [Problem("BadTriggerTime", f"annotation {TRIGGER_TIME_ANNOTATION} is not a time: {text!r}")],
            )
            return
        if when >= self._started_at:
            self._trigger_times.setdefault(service_key, []).append(when)

    def _report(self, kind: str, meta: Meta, problems: list[Problem]) -> None:
        if self._on_problem is not None:
            for problem in told(problems):
                self._on_problem(kind, meta, problem)
