"""What is known about service ports, as plain data: the one model behind `explain`, `list`, `top` and the status page.

The control socket sends it and `-o json` prints it; docs/json.md lists the fields, and a test compares the two.
"""

from __future__ import annotations

import enum

import msgspec

from pointsman.backends.contract import Difference
from pointsman.machine.reach import Reached
from pointsman.model.decision import ClientOutcome, EndpointReason, State
from pointsman.model.findings import Finding

Identity = tuple[str, str, str, str]
"""Service, port, protocol and IP family of a service port."""


class PolicyUse(msgspec.Struct, frozen=True, rename="camel"):
    """The use of an endpoint by frontends with one traffic policy, and its reason."""

    policy: str
    used: bool
    reason: EndpointReason
    message: str
    """The reason in English."""


class ProbeResult(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one connection made from the node by `--probe`."""

    place: str
    """`ip:port`."""
    outcome: Reached
    message: str


class Traffic(msgspec.Struct, frozen=True, rename="camel"):
    """Connections of a service port or of one endpoint, between two readings of the kernel."""

    open: int
    """Connections that are established now; of UDP, flows that were answered."""
    connections_per_second: float | None
    """None where they are not counted."""
    counted: bool = False
    """By the kernel; otherwise short connections are missed."""
    share: float = 0.0
    """Of an endpoint: of the new connections where there are any, else of the open ones."""
    bytes_per_second: float | None = None
    """Of a service port, in both directions; None where the mode counts none."""
    rates: tuple[float, ...] = ()
    """New connections per second at the last samples, the oldest first; only on the status page."""


class EndpointReport(msgspec.Struct, frozen=True, rename="camel"):
    """One endpoint of a service port."""

    address: str
    """`ip:port`."""
    node: str
    local: bool
    """On this node."""
    used: bool
    """Connections from this node may reach it."""
    zone: str = ""
    pod: str = ""
    """The pod behind it, where the EndpointSlice names one."""
    uses: tuple[PolicyUse, ...] = ()
    """By traffic policy; only in explanations."""
    share: float | None = None
    """Of new connections; only in explanations, and only where they are not spread evenly."""
    probe: ProbeResult | None = None
    traffic: Traffic | None = None
    """Only in `top`."""


class FrontendReport(msgspec.Struct, frozen=True, rename="camel"):
    """One address of a service port."""

    kind: str
    address: str
    """`ip:port`, or `port 30080` for a node port."""
    policy: str
    """Traffic policy: Cluster or Local; empty for a service port that is not planned."""
    ip: str = ""
    """Empty for a node port."""
    port: int = 0
    source_ranges: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    """Every `ip:port` at which this node serves it; only in explanations."""
    every_address: bool = False
    """A node port that is served at every address of the node."""
    asked: bool = False
    """The question is about this frontend."""
    outcomes: tuple[ClientOutcome, ...] = ()
    """By client; only in explanations."""
    probes: tuple[ProbeResult, ...] = ()


class KernelState(enum.StrEnum):
    """How the kernel compares to the plan of a service port."""

    NOT_CHECKED = "not checked"
    PRESENT = "present"
    MISSING = "missing"
    DIFFERENT = "different"


class KernelReport(msgspec.Struct, frozen=True, rename="camel"):
    """What the kernel has for a service port."""

    state: KernelState
    differences: tuple[Difference, ...] = ()


class HostState(enum.StrEnum):
    """The result of the checks of this host for the packets of a service port."""

    NOT_CHECKED = "not checked"
    CLEAR = "clear"
    OBSTRUCTED = "obstructed"
    """See the findings."""


class HostReport(msgspec.Struct, frozen=True, rename="camel"):
    """What was found on the host beside the proxy's own rules."""

    state: HostState
    not_read: tuple[str, ...] = ()
    """What could not be checked."""


class ServicePortReport(msgspec.Struct, frozen=True, rename="camel"):
    """One service port in one IP family."""

    service: str
    """`namespace/name`."""
    port: str
    """Its name; may be empty."""
    protocol: str
    family: str
    number: int
    state: State
    frontends: tuple[FrontendReport, ...]
    usable: int
    """Endpoints that connections from this node may reach."""
    total: int
    local: int
    """Endpoints on this node."""
    type: str = ""
    """Of the Service: ClusterIP, NodePort or LoadBalancer."""
    affinity_seconds: int = 0
    topology: str = ""
    """The hints that select endpoints: PreferSameZone or PreferSameNode; empty for none."""
    topology_target: str = ""
    """The zone or node that endpoints are selected for; only in explanations."""
    scheduler: str = ""
    """How endpoints are chosen; empty for evenly at random."""
    warming_up: bool = False
    """New endpoints get a growing share; only in explanations."""
    resets_gone: bool = False
    """Connections to endpoints that are in no slice any more are reset."""
    keeps_draining: bool = False
    """UDP flows stay on terminating endpoints until those are in no slice."""
    flow_timeout: int = 0
    """Seconds after which connection tracking forgets an idle UDP flow or established TCP connection; 0 for the kernel's timeouts."""
    findings: tuple[Finding, ...] = ()
    endpoints: tuple[EndpointReport, ...] = ()
    """Only in explanations and in lists with details."""
    deleted: bool = False
    """It exists no more; only in `list --watch`."""
    kernel: KernelReport = KernelReport(KernelState.NOT_CHECKED)
    host: HostReport = HostReport(HostState.NOT_CHECKED)
    traffic: Traffic | None = None
    """Only in `top`."""

    @property
    def identity(self) -> Identity:
        return (self.service, self.port, self.protocol, self.family)

    @property
    def name(self) -> str:
        """As everywhere: `namespace/name:port`, without a port name its number."""
        return f"{self.service}:{self.port or self.number}"

    @property
    def port_text(self) -> str:
        """Name or number of the port, and its protocol."""
        return f"{self.port or self.number}/{self.protocol}"

    @property
    def is_healthy(self) -> bool:
        return self.state is State.HEALTHY

    @property
    def measured(self) -> Traffic:
        """Its traffic; none where it was not measured."""
        return self.traffic or Traffic(0, None)


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of `explain`."""

    question: str
    node: str
    mode: str
    live: bool
    """From the running proxy; otherwise planned from manifests."""
    ports: tuple[ServicePortReport, ...]
    findings: tuple[Finding, ...]
    """About the question as a whole: no such Service, an address without a Service, syncs that fail."""

    @property
    def is_healthy(self) -> bool:
        return (
            bool(self.ports)
            and all(port.is_healthy for port in self.ports)
            and not any(finding.is_error for finding in self.findings)
        )
