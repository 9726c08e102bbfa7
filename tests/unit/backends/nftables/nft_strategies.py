"""Random small clusters for the nftables tests: contexts, and plans that share addresses, endpoints and shapes."""

from __future__ import annotations

from hypothesis import strategies as st

from pointsman.model.addresses import Cidr, Family, cidr_from_text
from pointsman.model.balancing import NO_REQUEST, BalancingDefaults, BalancingRequest, Scheduler
from pointsman.model.endpoint import Endpoint, EndpointState
from pointsman.model.node_context import LocalDetector, LocalMode, NodeContext, NodePortAddresses
from pointsman.model.plan import ServicePlan
from pointsman.model.planning import plan_service_port
from pointsman.model.service import (
    NO_TIMEOUTS,
    FlowTimeouts,
    Protocol,
    ServicePort,
    ServicePortName,
    ServiceSettings,
    SourceRanges,
)

Plans = dict[ServicePortName, ServicePlan]

_PREFIX = {Family.IPV4: bytes((10, 0)), Family.IPV6: bytes.fromhex("fd00") + bytes(12)}


def address(family: Family, block: int, number: int) -> bytes:
    return _PREFIX[family] + bytes((block, number))


def _cidr(text: str) -> Cidr:
    cidr = cidr_from_text(text)
    assert cidr is not None
    return cidr


POD_RANGES = {Family.IPV4: _cidr("10.0.3.0/24"), Family.IPV6: _cidr("fd00::300/120")}
ODD_RANGES = {Family.IPV4: _cidr("10.0.3.128/25"), Family.IPV6: _cidr("fd00::380/121")}
SERVICE_RANGES = {Family.IPV4: _cidr("10.0.1.0/24"), Family.IPV6: _cidr("fd00::100/120")}


@st.composite
def contexts(draw: st.DrawFn, family: Family) -> NodeContext:
    node = address(family, 9, 9)
    detector = draw(
        st.sampled_from(
            [
                LocalDetector(),
                LocalDetector(LocalMode.CIDR, POD_RANGES[family]),
                LocalDetector(LocalMode.CIDR, ODD_RANGES[family]),
                LocalDetector(LocalMode.INTERFACE, interface="cni0"),
                LocalDetector(LocalMode.INTERFACE_PREFIX, interface="veth"),
            ]
        )
    )
    return NodeContext(
        family=family,
        node_name="n1",
        node_ips=(node,),
        local=detector,
        node_port_addresses=draw(
            st.sampled_from(
                [
                    NodePortAddresses(),
                    NodePortAddresses(match_all=False, addresses=(node,)),
                    NodePortAddresses(match_all=False),
                ]
            )
        ),
        service_cidrs=draw(st.sampled_from([(), (SERVICE_RANGES[family],)])),
        masquerade_all=draw(st.booleans()),
        masquerade_bit=draw(st.sampled_from([14, 0, 31])),
        balancing=draw(
            st.sampled_from([BalancingDefaults(), BalancingDefaults(seed=0x7FFFFFFF, hash_slots=64)])
        ),
    )


SCHEDULINGS = [
    BalancingRequest(Scheduler.WEIGHTED),
    BalancingRequest(Scheduler.SOURCE_HASH, hash_slots=64),
    BalancingRequest(Scheduler.SOURCE_PORT_HASH, hash_slots=80),
    BalancingRequest(Scheduler.LEAST_CONNECTIONS),
    BalancingRequest(reset_gone=True),
]
"""Every way to choose an endpoint but the usual one."""


TIMEOUTS = [FlowTimeouts(udp=5, tcp_established=7200), FlowTimeouts(udp=9)]


@st.composite
def endpoint_lists(draw: st.DrawFn, family: Family) -> tuple[Endpoint, ...]:
    numbers = draw(st.lists(st.integers(1, 30), unique=True, max_size=5))
    endpoints = [
        Endpoint(
            address(family, 3, number),
            8080 + number % 2,
            state=EndpointState(
                local=bool(number % 3 == 0),
                weight=draw(st.sampled_from([-1, -1, -1, 0, 2, 7, 1000])),
                share=draw(st.sampled_from([100, 100, 100, 10])),
            ),
        )
        for number in numbers
    ]
    return tuple(sorted(endpoints, key=str))


@st.composite
def source_ranges(draw: st.DrawFn, family: Family) -> tuple[Cidr, ...]:
    bits = family.address_length * 8
    found = []
    for _ in range(draw(st.integers(0, 3))):
        prefix = draw(st.integers(bits - 12, bits))
        number = int.from_bytes(address(family, draw(st.integers(8, 10)), draw(st.integers(0, 255))), "big")
        network = (number >> (bits - prefix)) << (bits - prefix)
        found.append(Cidr(network.to_bytes(family.address_length, "big"), prefix))
    return tuple(dict.fromkeys(found))


@st.composite
def plans(draw: st.DrawFn, context: NodeContext, max_size: int = 5) -> Plans:
    """Services 0..n, each with a fixed cluster IP so that a later draw changes rather than replaces it."""
    family = context.family
    found: Plans = {}
    for number in draw(st.lists(st.integers(0, 7), unique=True, max_size=max_size)):
        protocol = (Protocol.TCP, Protocol.UDP, Protocol.SCTP)[number % 3]
        balancers = draw(st.integers(0, 2))
        port = ServicePort(
            name=ServicePortName("default", f"svc-{number}", "p", protocol),
            family=family,
            cluster_ip=address(family, 1, number // 2 + 1),
            port=80 + number,
            node_port=draw(st.sampled_from([0, 30000 + number])),
            external_ips=tuple(address(family, 5, number * 4 + i) for i in range(draw(st.integers(0, 2)))),
            load_balancer_ips=tuple(address(family, 6, number * 4 + i) for i in range(balancers)),
            service=ServiceSettings(
                source_ranges=SourceRanges(
                    draw(source_ranges(family)) if balancers else (), all_frontends=draw(st.booleans())
                ),
                internal_local=draw(st.booleans()),
                external_local=draw(st.booleans()),
                affinity_seconds=draw(st.sampled_from([0, 0, 0, 60, 10800])),
                balancing=draw(st.sampled_from([NO_REQUEST, NO_REQUEST, *SCHEDULINGS])),
                flow_timeouts=draw(st.sampled_from([NO_TIMEOUTS, *TIMEOUTS])),
            ),
        )
        plan = plan_service_port(port, draw(endpoint_lists(family)), context)
        assert isinstance(plan, ServicePlan)
        found[port.name] = plan
    return found


@st.composite
def histories(draw: st.DrawFn, family: Family, steps: int = 4) -> tuple[NodeContext, list[Plans]]:
    """A context and the states a cluster goes through."""
    context = draw(contexts(family))
    return context, [draw(plans(context)) for _ in range(draw(st.integers(1, steps)))]
