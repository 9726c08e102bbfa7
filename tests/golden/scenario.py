"""Recorded scenarios as sync requests: the same objects and configuration that kube-proxy was given.

Every mode's golden tests go through here: `scenario_names(mode)`, `load(name)`, then `Replay` to bring a backend
through the steps, or `requests` for the bare requests of one family.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from tests.harness.config_file import config_from_bytes

from pointsman.backends.contract import Backend, SyncReport, SyncRequest
from pointsman.config.defaults import with_mode
from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.addresses import Family, address_from_text
from pointsman.model.node_context import NodeContext, build_node_facts
from pointsman.model.objects import HEADLESS_LABEL, EndpointSlice, Node, Service, ServiceCIDR
from pointsman.model.tracker import Tracker
from pointsman.node.state import build_node_context
from pointsman.sync.reconcile import Reconciler, SyncOutcome

DATA = Path(__file__).parent / "data"
NODE_NAME = "n1"
LOCAL_ADDRESSES = {
    Family.IPV4: ("127.0.0.1", "172.30.0.10"),
    Family.IPV6: ("::1", "fd00:30::10", "fe80::acff:fe1e:a"),
}
"""What the interfaces of the recorded node hold."""

_KINDS = {"Service": Service, "EndpointSlice": EndpointSlice, "Node": Node, "ServiceCIDR": ServiceCIDR}


class Step(msgspec.Struct, frozen=True):
    """The objects at one moment, and where the recordings of that moment are."""

    name: str
    directory: Path
    services: Mapping[str, Service]
    slices: Mapping[str, EndpointSlice]
    node: Node | None
    service_cidrs: tuple[str, ...]
    restarted: bool = False
    """A new process started for this step and found what the last one left."""


class Scenario(msgspec.Struct, frozen=True):
    """A configuration and one or more steps."""

    name: str
    config: KubeProxyConfiguration
    steps: tuple[Step, ...]
    notes: str


def scenario_names(mode: str) -> list[str]:
    """Scenarios with a recording of this mode."""
    return sorted(
        directory.name
        for directory in DATA.iterdir()
        if (directory / mode).is_dir() or (directory / "step-1" / mode).is_dir()
    )


def load(name: str) -> Scenario:
    directory = DATA / name
    notes = (directory / "notes.md").read_text()
    steps = sorted(directory.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    return Scenario(
        name=name,
        config=config_from_bytes((directory / "config.yaml").read_bytes()),
        steps=tuple(_step(path, notes) for path in steps or [directory]),
        notes=notes,
    )


def _step(directory: Path, notes: str) -> Step:
    services: dict[str, Service] = {}
    slices: dict[str, EndpointSlice] = {}
    node: Node | None = None
    service_cidrs: list[str] = []
    for item in json.loads((directory / "objects.json").read_text())["items"]:
        found = msgspec.convert(item, _KINDS[item["kind"]], strict=False)
        if isinstance(found, Service):
            services[found.metadata.key] = found
        elif isinstance(found, EndpointSlice) and found.metadata.label(HEADLESS_LABEL) is None:
            slices[found.metadata.key] = found
        elif isinstance(found, Node) and found.metadata.name == NODE_NAME:
            node = found
        elif isinstance(found, ServiceCIDR):
            service_cidrs += found.spec.cidrs or ()
    restarted = any(
        line.startswith(f"- {directory.name}:") and "restarted" in line for line in notes.splitlines()
    )
    return Step(directory.name, directory, services, slices, node, tuple(service_cidrs), restarted)


class Replay:
    """Brings the backends of one scenario from step to step the way the running proxy would."""

    def __init__(self, scenario: Scenario, mode: str, backends: Iterable[Backend]) -> None:
        self.config = with_mode(scenario.config, mode)
        self.reconcilers = {backend.family: Reconciler(backend) for backend in backends}
        allow = dict(scenario.config.feature_gates).get("AllowServiceExternalIPs", True)
        self.trackers = {
            family: Tracker(family, NODE_NAME, allow_external_ips=allow) for family in self.reconcilers
        }
        self._services: set[str] = set()
        self._slices: set[str] = set()

    def context(self, step: Step, family: Family) -> NodeContext:
        addresses = [address_from_text(text) for text in LOCAL_ADDRESSES[family]]
        return build_node_context(
            self.config,
            family,
            build_node_facts(NODE_NAME, step.node, self.config.bind_address),
            local_addresses=[address for address in addresses if address is not None],
            service_cidrs=step.service_cidrs,
        )

    def advance(self, step: Step, *, full: bool = False) -> dict[Family, SyncOutcome]:
        """Deliver the step's objects and sync every family."""
        for tracker in self.trackers.values():
            for key in self._services - step.services.keys():
                tracker.delete_service(key)
            for key in self._slices - step.slices.keys():
                tracker.delete_slice(key)
            for service in step.services.values():
                tracker.upsert_service(service)
            for endpoint_slice in step.slices.values():
                tracker.upsert_slice(endpoint_slice)
        self._services, self._slices = set(step.services), set(step.slices)
        return {
            family: reconciler.sync(self.trackers[family].take(), self.context(step, family), full=full)
            for family, reconciler in self.reconcilers.items()
        }


def requests(scenario: Scenario, mode: str, family: Family) -> Iterator[tuple[Step, SyncRequest]]:
    """Every step with the request a backend of this mode and family gets for it."""
    recorder = _Recorder(family)
    replay = Replay(scenario, mode, [recorder])
    for step in scenario.steps:
        replay.advance(step)
        yield step, recorder.requests[-1]


class _Recorder(Backend):
    """A backend that keeps what it is asked for; plans are copied because the caller goes on changing them."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.requests: list[SyncRequest] = []

    def sync(self, request: SyncRequest) -> SyncReport:
        self.requests.append(msgspec.structs.replace(request, plans=dict(request.plans)))
        return SyncReport(full=request.full)
