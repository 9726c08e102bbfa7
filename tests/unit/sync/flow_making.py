"""Plans and flows for tests of what happens to flows when plans change."""

from __future__ import annotations

from typing import Any

from tests.factory import take_settings

from pointsman.kernel.tracked_flows import Flow
from pointsman.model.addresses import Family
from pointsman.model.endpoint import Endpoint, EndpointState
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.planning import plan_service_port
from pointsman.model.service import Protocol, ServicePort, ServicePortName
from pointsman.sync.reconcile import PlanChange
from pointsman.sync.stale_flows import FlowCheck, extend_check

CLUSTER, EXTERNAL, BALANCER = b"\x0a\x60\0\x0a", b"\xc0\0\x02\x05", b"\xc0\0\x02\x06"
NODE, OTHER_HOST, CLIENT = b"\x0a\0\0\x01", b"\x0a\0\0\x63", b"\x0a\xf4\x09\x09"
POD_A, POD_B = (b"\x0a\xf4\0\x05", 5353), (b"\x0a\xf4\0\x06", 5353)
NODE_PORT = 30053
CONTEXT = NodeContext(Family.IPV4, "n", node_ips=(NODE,))
OWN_ADDRESSES = (NODE, b"\x7f\0\0\x01")
NAME = ServicePortName("kube-system", "dns", "dns", Protocol.UDP)
SCTP_NAME, TCP_NAME = (ServicePortName("a", "b", "", protocol) for protocol in (Protocol.SCTP, Protocol.TCP))


def pod(backend: tuple[bytes, int], **state: Any) -> Endpoint:
    return Endpoint(*backend, state=EndpointState(**state))


def plan(
    *endpoints: Endpoint,
    name: ServicePortName = NAME,
    addresses: tuple[bytes, ...] = (CLUSTER, EXTERNAL, BALANCER),
    node_port: int = NODE_PORT,
    port: int = 53,
    **more: Any,
) -> ServicePlan:
    """The first address is the cluster IP."""
    settings = take_settings(more)
    described = ServicePort(
        name, Family.IPV4, addresses[0], port, node_port, addresses[1:], service=settings, **more
    )
    made = plan_service_port(described, endpoints, CONTEXT)
    assert isinstance(made, ServicePlan)
    return made


def check_after(
    *changes: PlanChange,
    context: NodeContext = CONTEXT,
    own_addresses: tuple[bytes, ...] = OWN_ADDRESSES,
) -> FlowCheck:
    """The check that follows these changes of different service ports."""
    pending = [(name_of(change), extend_check(None, change)) for change in changes]
    plans = {change.new.name: change.new for change in changes if change.new is not None}
    return FlowCheck(
        [(name, check) for name, check in pending if check is not None], plans, context, own_addresses
    )


def name_of(change: PlanChange) -> ServicePortName:
    either = change.new or change.old
    assert either is not None
    return either.name


def flow(
    to: bytes,
    port: int,
    answering: tuple[bytes, int] | None,
    *,
    protocol: int = 17,
    source_port: int = 4000,
    replied: bool = False,
) -> Flow:
    source, number = answering or (to, port)
    identity = b"\0\0\0\x01"
    return Flow(
        protocol, CLIENT, source_port, to, port, source, number, CLIENT, source_port, identity, replied
    )


def syn(to: bytes, port: int, answering: tuple[bytes, int] | None = None, *, replied: bool = False) -> Flow:
    return flow(to, port, answering, protocol=6, replied=replied)
