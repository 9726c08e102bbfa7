"""The answer of `explain` as plain data: what the control socket sends, `-o json` prints and the text is made from."""

from __future__ import annotations

import enum

import msgspec

from pointsman.backends.contract import Difference
from pointsman.machine.reach import Reached


class Cause(msgspec.Struct, frozen=True, rename="camel"):
    """Something that keeps a Service, or part of it, from answering."""

    code: str
    """Short CamelCase word for programs."""
    message: str
    """What is the case."""
    advice: str = ""
    """What to do about it."""
    fatal: bool = True
    """False for remarks: traffic still flows, perhaps not as expected."""


class PolicyUse(msgspec.Struct, frozen=True, rename="camel"):
    """Whether frontends with one traffic policy use an endpoint, and why."""

    policy: str
    used: bool
    reason: str


class ProbeAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What came of one connection made from the node, with `--probe`."""

    place: str
    """`ip:port`."""
    outcome: Reached
    words: str


class EndpointAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """One endpoint of the service port."""

    address: str
    node: str
    zone: str
    local: bool
    uses: tuple[PolicyUse, ...]
    pod: str = ""
    """The pod behind it, where the EndpointSlice names one."""
    probe: ProbeAnswer | None = None


class Path(msgspec.Struct, frozen=True, rename="camel"):
    """What a connection from one kind of client to one frontend meets."""

    client: str
    answered: bool
    result: str
    endpoints: tuple[str, ...] = ()
    source: str = ""
    """What the endpoint sees as the client's address."""
    restricted: bool = False
    """Kept out on purpose, by loadBalancerSourceRanges."""


class FrontendAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """One address at which the service port answers, or should."""

    kind: str
    address: str
    policy: str
    asked: bool
    """The question named this very address."""
    source_ranges: tuple[str, ...]
    paths: tuple[Path, ...]
    places: tuple[str, ...] = ()
    """`ip:port` at which the node itself would use it."""
    probes: tuple[ProbeAnswer, ...] = ()


class KernelState(enum.Enum):
    """What a look at the kernel found for a service port."""

    NOT_ASKED = "not asked"
    PRESENT = "present"
    MISSING = "missing"
    DIFFERENT = "different"


class KernelAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What the kernel holds for a service port."""

    state: KernelState
    differences: tuple[Difference, ...] = ()


class HostState(enum.Enum):
    """What a look at the host found on the way of the packets."""

    NOT_ASKED = "not asked"
    CLEAR = "clear"
    HINDERED = "hindered"
    """The causes tell by what."""


class HostAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What was found on the host beside the proxy's own rules."""

    state: HostState
    not_read: tuple[str, ...] = ()
    """What could not be looked at."""


class PortAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Everything about one service port in one IP family."""

    service: str
    port: str
    protocol: str
    family: str
    number: int
    affinity_seconds: int
    topology: str
    """Which hints narrow the endpoints, or why hints are ignored; empty without hints."""
    balancing: str
    """How new connections are spread; empty for evenly at random."""
    gone: str
    """What becomes of connections to endpoints that have left; empty when they are left to themselves."""
    frontends: tuple[FrontendAnswer, ...]
    endpoints: tuple[EndpointAnswer, ...]
    kernel: KernelAnswer
    causes: tuple[Cause, ...]
    answers: bool
    """Every client asked about gets an answer at every frontend asked about."""
    host: HostAnswer = HostAnswer(HostState.NOT_ASKED)


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """The whole answer."""

    question: str
    node: str
    mode: str
    live: bool
    ports: tuple[PortAnswer, ...]
    causes: tuple[Cause, ...]
    """About the question as a whole: no such Service, an address nobody serves, syncs that fail."""

    @property
    def answers(self) -> bool:
        return (
            bool(self.ports)
            and all(port.answers for port in self.ports)
            and not any(cause.fatal for cause in self.causes)
        )
