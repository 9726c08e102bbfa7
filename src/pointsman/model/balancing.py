"""Distribution of connections over endpoints: what a Service requests, and what a node does with the request.

A Service requests by annotations; the configuration has the defaults. Modes differ in their capabilities, so requests are
parsed here and planning decides about them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from pointsman.model.endpoint import FULL_SHARE, NO_WEIGHT, Endpoint, Identity
from pointsman.model.findings import Code, Finding, build_bad_annotation
from pointsman.model.objects import Meta

SCHEDULER_ANNOTATION = "pointsman.dev/scheduler"
WEIGHTS_ANNOTATION = "pointsman.dev/weights"
SLOW_START_ANNOTATION = "pointsman.dev/slow-start"
HASH_SLOTS_ANNOTATION = "pointsman.dev/hash-slots"
RESET_GONE_ANNOTATION = "pointsman.dev/reset-gone"

MAX_WEIGHT = 1000
MAX_SLOW_START_SECONDS = 3600
DEFAULT_HASH_SLOTS = 512
HASH_SLOTS_RANGE = (64, 65536)


class Scheduler(enum.Enum):
    """Ways to choose the endpoint of a new connection."""

    RANDOM = "random"
    WEIGHTED = "weighted"
    SOURCE_HASH = "source-hash"
    """By the client's address: a client gets the same endpoint on every node."""
    SOURCE_PORT_HASH = "source-port-hash"
    """By the client's address and port."""
    LEAST_CONNECTIONS = "least-connections"
    IPVS_ONLY = "ipvs"
    """A scheduler that only IPVS has."""

    @property
    def is_hash(self) -> bool:
        return self in (Scheduler.SOURCE_HASH, Scheduler.SOURCE_PORT_HASH)


IPVS_SCHEDULERS: Mapping[str, Scheduler] = {
    "rr": Scheduler.RANDOM,
    "wrr": Scheduler.WEIGHTED,
    "lc": Scheduler.LEAST_CONNECTIONS,
    "wlc": Scheduler.LEAST_CONNECTIONS,
    "sh": Scheduler.SOURCE_HASH,
    "mh": Scheduler.SOURCE_PORT_HASH,
    **dict.fromkeys(("fo", "ovf", "lblc", "lblcr", "dh", "sed", "nq", "twos"), Scheduler.IPVS_ONLY),
}
"""The schedulers of IPVS, and their closest equivalents in other modes."""

OWN_SCHEDULERS: Mapping[str, Scheduler] = {
    scheduler.value: scheduler for scheduler in Scheduler if scheduler is not Scheduler.IPVS_ONLY
}
_SCHEDULERS: Mapping[str, Scheduler] = {**OWN_SCHEDULERS, **IPVS_SCHEDULERS}


Weights = Mapping[tuple[str, str], int]
"""Weights by kind (`pod`, `node`, `zone`) and name; the weight of all endpoints has two empty strings as its key."""

MAX_WEIGHTS = 1000
"""Limit of entries of one annotation, as many as an EndpointSlice has endpoints."""


class BalancingRequest(msgspec.Struct, frozen=True, gc=False):
    """What one Service requests by annotations; None and 0 where the configuration decides."""

    scheduler: Scheduler | None = None
    requested_name: str = ""
    """Name of the scheduler as written, which may be one of IPVS."""
    weights: Weights = {}
    slow_start: int | None = None
    """Seconds until a new endpoint has its full share."""
    hash_slots: int = 0
    reset_gone: bool | None = None
    """Connections to removed endpoints are reset."""


NO_REQUEST = BalancingRequest()


class Capabilities(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a proxy mode can do, and what planning must know about it. Passed whole, never copied field by field."""

    schedulers: frozenset[Scheduler] = frozenset((Scheduler.RANDOM,))
    has_default_scheduler: bool = False
    """The mode's own configuration names the scheduler of Services that request none."""
    adjusts_shares: bool = False
    """Shares of endpoints can change every few seconds at little cost: slow start, least-connections."""
    fills_hash_tables: bool = False
    """Tables of source hashes are filled by this program, at a cost, and not by the kernel."""
    sets_flow_timeouts: bool = False
    """Connection tracking can forget idle flows of a Service earlier or later than other flows."""
    limits_all_frontends: bool = True
    """Source ranges can restrict clients of node ports and external IPs, too."""
    uses_local_addresses: bool = False
    """The rules depend on every address of the node."""
    resets_need_loose_tracking: bool = True
    """Connections to removed endpoints are reset only where conntrack picks up TCP connections mid-stream."""
    counts_services: bool = False
    """Metrics count Services without local endpoints, not their ports, as kube-proxy does in that mode."""


FULL_CAPABILITIES = Capabilities(
    schedulers=frozenset(Scheduler) - {Scheduler.IPVS_ONLY},
    adjusts_shares=True,
    fills_hash_tables=True,
    sets_flow_timeouts=True,
)
"""Capabilities of a mode without restrictions."""


class BalancingDefaults(msgspec.Struct, frozen=True, gc=False):
    """Defaults of a node for Services without a request, and the capabilities of its mode."""

    scheduler: Scheduler = Scheduler.RANDOM
    slow_start: int = 0
    seed: int = 1
    """Seed of source hashes; must be the same on all nodes."""
    hash_slots: int = DEFAULT_HASH_SLOTS
    reset_gone: bool = False
    dns_timeout: int = 0
    """Seconds after which idle flows of UDP port 53 are forgotten; 0 leaves that to the kernel."""
    capabilities: Capabilities = FULL_CAPABILITIES


DEFAULT_BALANCING = BalancingDefaults()
"""Defaults of a node without configuration."""


class BalancingPlan(msgspec.Struct, frozen=True, gc=False):
    """How one service port is balanced, unless evenly at random."""

    scheduler: Scheduler
    weights: Mapping[Identity, int] = {}
    """Relative weight of every endpoint; empty when all are equal."""
    adjusted: bool = False
    """Weights are adjusted continuously; a table of constant size saves work."""
    seed: int = 0
    hash_slots: int = 0
    """As requested."""
    max_slots: int = HASH_SLOTS_RANGE[1]
    """Limit, shared with the other ports and frontends of the Service."""

    def weight(self, endpoint: Endpoint) -> int:
        return self.weights.get(endpoint.identity, 1)


def parse_balancing_request(meta: Meta, findings: list[Finding]) -> BalancingRequest:
    """Return what the annotations of a Service request; an invalid value is reported and ignored."""
    if not meta.annotations:
        return NO_REQUEST
    name = meta.annotation(SCHEDULER_ANNOTATION) or ""
    known = f"one of {', '.join((*OWN_SCHEDULERS, *IPVS_SCHEDULERS))}"
    scheduler = (
        read_annotation(meta, SCHEDULER_ANNOTATION, _SCHEDULERS.get, known, findings) if name else None
    )
    slots = "a number from {} to {}".format(*HASH_SLOTS_RANGE)
    period = "a time of at most 1 h, such as 30s or 2m"
    found = BalancingRequest(
        scheduler,
        name if scheduler is not None else "",
        parse_weights(meta, findings),
        read_annotation(meta, SLOW_START_ANNOTATION, _parse_slow_start, period, findings),
        read_annotation(meta, HASH_SLOTS_ANNOTATION, _parse_hash_slots, slots, findings) or 0,
        read_annotation(meta, RESET_GONE_ANNOTATION, _TRUTH.get, '"true" or "false"', findings),
    )
    if found.slow_start and scheduler is not None and scheduler.is_hash:
        parameters = {"annotation": SLOW_START_ANNOTATION, "scheduler": name}
        findings.append(Finding(Code.SLOW_START_IGNORED, parameters=parameters))
    return NO_REQUEST if found == NO_REQUEST else found


_Value = TypeVar("_Value")


def read_annotation(
    meta: Meta, name: str, parse: Callable[[str], _Value | None], expected: str, findings: list[Finding]
) -> _Value | None:
    """Return the value of an annotation; None without one, and for text that `parse` returns None for, which is reported."""
    text = meta.annotation(name)
    value = parse(text) if text is not None else None
    if text is not None and value is None:
        findings.append(build_bad_annotation(name, text, expected))
    return value


_TRUTH = {"true": True, "false": False}


def _parse_hash_slots(text: str) -> int | None:
    minimum, maximum = HASH_SLOTS_RANGE
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) and minimum <= int(text) <= maximum else None


_DURATION = re.compile(r"([0-9]{1,6})([smh])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_seconds(text: str, limit: int) -> int | None:
    """Return `30s`, `2m` or `1h` as seconds; None for any other form and above the limit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    seconds = int(match[1]) * _UNIT_SECONDS[match[2]]
    return seconds if seconds <= limit else None


def _parse_slow_start(text: str) -> int | None:
    return parse_seconds(text, MAX_SLOW_START_SECONDS)


_WEIGHT_ENTRY = re.compile(r"(?:(pod|node|zone)/([^/=,\s]{1,253})=)?([0-9]{1,4})")


def parse_weights(meta: Meta, findings: list[Finding]) -> Weights:
    """Return the weights of a Service or an EndpointSlice; invalid entries and those beyond the limit are ignored."""
    text = meta.annotation(WEIGHTS_ANNOTATION)
    if not text:
        return {}
    weights: dict[tuple[str, str], int] = {}
    entries = text.split(",", MAX_WEIGHTS)
    for entry in entries[:MAX_WEIGHTS]:
        match = _WEIGHT_ENTRY.fullmatch(entry.strip())
        if match is None or int(match[3]) > MAX_WEIGHT:
            expected = f"entries zone/NAME=N, node/NAME=N or pod/NAME=N with N from 0 to {MAX_WEIGHT}"
            findings.append(build_bad_annotation(WEIGHTS_ANNOTATION, entry.strip(), expected))
        else:
            weights[match[1] or "", match[2] or ""] = int(match[3])
    if len(entries) > MAX_WEIGHTS:
        expected = f"at most {MAX_WEIGHTS} entries; give weights by node or zone, or annotate EndpointSlices"
        findings.append(build_bad_annotation(WEIGHTS_ANNOTATION, entries[-1].strip(), expected))
    return weights


def find_weight(weights: Weights, pod: str, node: str, zone: str) -> int:
    """Return the most specific weight for an endpoint, or NO_WEIGHT."""
    for place in (("pod", pod), ("node", node), ("zone", zone), ("", "")):
        weight = weights.get(place)
        if weight is not None:
            return weight
    return NO_WEIGHT


def compute_weight(endpoint: Endpoint, request: BalancingRequest) -> int:
    """Return the weight from the slice of an endpoint, else from the Service, else 1."""
    if endpoint.state.weight != NO_WEIGHT:
        return endpoint.state.weight
    found = find_weight(request.weights, endpoint.pod, endpoint.node, endpoint.zone)
    return 1 if found == NO_WEIGHT else found


def choose_scheduler(
    request: BalancingRequest,
    endpoints: Iterable[Endpoint],
    defaults: BalancingDefaults,
    findings: list[Finding],
) -> Scheduler:
    """Return the requested scheduler where the mode has it, else a fallback, which is reported."""
    requested = request.scheduler
    if request.slow_start and not defaults.capabilities.adjusts_shares:
        parameters = {"annotation": SLOW_START_ANNOTATION}
        findings.append(Finding(Code.SLOW_START_NOT_POSSIBLE, parameters=parameters))
    if requested is None:
        default = (
            defaults.scheduler if defaults.scheduler in defaults.capabilities.schedulers else Scheduler.RANDOM
        )
        return choose_fallback_scheduler(request, endpoints) if default is Scheduler.RANDOM else default
    if requested in defaults.capabilities.schedulers:
        return requested
    used = choose_fallback_scheduler(request, endpoints)
    parameters = {"annotation": SCHEDULER_ANNOTATION, "scheduler": request.requested_name, "used": used.value}
    findings.append(Finding(Code.SCHEDULER_NOT_POSSIBLE, parameters=parameters))
    return used


def choose_fallback_scheduler(request: BalancingRequest, endpoints: Iterable[Endpoint]) -> Scheduler:
    """Return what every mode has: random, or weighted where weights are given."""
    weighed = bool(request.weights) or any(e.state.weight != NO_WEIGHT for e in endpoints)
    return Scheduler.WEIGHTED if weighed else Scheduler.RANDOM


def compute_slow_start_seconds(request: BalancingRequest, defaults: BalancingDefaults) -> int:
    """Return the seconds until a new endpoint gets its full share; 0 for no slow start."""
    seconds = defaults.slow_start if request.slow_start is None else request.slow_start
    scheduler = request.scheduler or defaults.scheduler
    return seconds if defaults.capabilities.adjusts_shares and not scheduler.is_hash else 0


def remove_drained_endpoints(
    endpoints: tuple[Endpoint, ...], request: BalancingRequest
) -> tuple[Endpoint, ...]:
    """Return the endpoints that get new connections: not those of weight 0, unless there is no other."""
    kept = tuple(endpoint for endpoint in endpoints if compute_weight(endpoint, request))
    return kept if 0 < len(kept) < len(endpoints) else endpoints


def build_balancing_plan(
    scheduler: Scheduler,
    request: BalancingRequest,
    endpoints: tuple[Endpoint, ...],
    defaults: BalancingDefaults,
    max_slots: int,
) -> BalancingPlan | None:
    """Return how connections to these endpoints are distributed; None for evenly at random."""
    adjusted = (
        defaults.capabilities.adjusts_shares
        and not scheduler.is_hash
        and any(e.state.share != FULL_SHARE for e in endpoints)
    )
    weights = dict(_compute_weights(scheduler, request, endpoints, adjusted))
    if len(set(weights.values())) < 2:
        weights, adjusted = {}, False
    if scheduler.is_hash:
        slots = request.hash_slots or defaults.hash_slots
        return BalancingPlan(scheduler, weights, seed=defaults.seed, hash_slots=slots, max_slots=max_slots)
    if not weights and scheduler in (Scheduler.RANDOM, Scheduler.WEIGHTED):
        return None
    return BalancingPlan(scheduler, weights, adjusted or scheduler is Scheduler.LEAST_CONNECTIONS)


def _compute_weights(
    scheduler: Scheduler, request: BalancingRequest, endpoints: tuple[Endpoint, ...], adjusted: bool
) -> Iterator[tuple[Identity, int]]:
    for endpoint in endpoints:
        weight = 1 if scheduler is Scheduler.RANDOM else (compute_weight(endpoint, request) or 1)
        share = endpoint.state.share if adjusted else 1
        yield endpoint.identity, weight * share
