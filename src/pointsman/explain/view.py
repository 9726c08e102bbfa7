"""What an explanation is made from: one IP family of a proxy at one moment, live or planned from manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from pointsman.backends.contract import Difference, Mode
from pointsman.model.addresses import Cidr, Family
from pointsman.model.decision import ClientKind
from pointsman.model.findings import Finding
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.model.slices import PortKey
from pointsman.model.tracker import PortState

if TYPE_CHECKING:
    from pointsman.machine.host_facts import HostFacts


class FamilyView(msgspec.Struct, frozen=True):
    """One IP family."""

    context: NodeContext
    plans: Mapping[ServicePortName, ServicePlan]
    states: Mapping[ServicePortName, PortState]
    """What the objects request; a service port may be here and have no plan."""
    slices: Mapping[str, Mapping[str, Mapping[PortKey, int]]] = {}
    """By Service key and slice: how many endpoints each of its ports has. May cover only the Services asked about."""
    node_addresses: tuple[bytes, ...] = ()
    localhost_node_ports: bool = False
    """The configuration does not rule out node ports on loopback; see `Mode.localhost_node_ports`."""
    pod_ranges: tuple[Cidr, ...] = ()
    """The Node's own podCIDRs."""
    rejected: Mapping[ServicePortName, str] = {}
    """Left out because the kernel refused it."""
    unsynced: frozenset[ServicePortName] = frozenset()
    """Changed and not yet in the kernel."""
    last_error: str = ""
    differences: tuple[Difference, ...] | None = None
    """Kernel against plans; None when not checked."""
    blocked: frozenset[ClientKind] = frozenset()
    """Clients of which no connection to another host or pod gets through this node: forwarding is off, or all is dropped."""
    unreachable: frozenset[bytes] = frozenset()
    """Addresses of endpoints without a route."""
    host: HostFacts | None = None
    """What the host does beside the proxy's rules; None when not checked."""

    @property
    def family(self) -> Family:
        return self.context.family


class View(msgspec.Struct, frozen=True):
    """The proxy as a whole."""

    node: str
    mode: Mode
    live: bool
    families: tuple[FamilyView, ...]
    service_findings: Mapping[str, tuple[Finding, ...]] = {}
    """By Service key; see `ServiceFindings`."""
    source_findings: tuple[Finding, ...] = ()
    """About objects that the source cannot use, or that need attention."""
    waiting_for: str = ""
    """What the proxy needs before its first sync; empty once it has started."""
