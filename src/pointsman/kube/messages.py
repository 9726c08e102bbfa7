"""Which field of which message of the Kubernetes API goes where in our structs.

The numbers are part of the API, as its definitions publish them (generated.proto of each group), and never change.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from pointsman.kube.wire import (
    BoundedCache,
    Malformed,
    Reader,
    flag,
    integer,
    long_integer,
    many,
    mapping,
    message,
    name,
    one,
    text,
    texts,
)
from pointsman.model.objects import (
    ClientIPConfig,
    Conditions,
    EndpointSlice,
    Hint,
    Hints,
    Ingress,
    LoadBalancerStatus,
    Meta,
    Node,
    NodeAddress,
    NodeSpec,
    NodeStatus,
    Service,
    ServiceCIDR,
    ServiceCIDRSpec,
    ServicePortSpec,
    ServiceSpec,
    ServiceStatus,
    SessionAffinityConfig,
    SliceEndpoint,
    SlicePort,
    Taint,
    TargetRef,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Time(msgspec.Struct, frozen=True, gc=False):
    """meta/v1 Time"""

    seconds: int = 0


class _IntOrString(msgspec.Struct, frozen=True, gc=False):
    """util/intstr IntOrString"""

    type: int = 0
    number: int = 0
    text: str = ""


_read_time = message(_Time, seconds=long_integer(1))
_read_int_or_string = message(_IntOrString, type=long_integer(1), number=integer(2), text=text(3))


def _decode_time(data: bytes) -> str | None:
    """As JSON has it, to the second; an empty message is the zero time, which JSON leaves out."""
    if not data:
        return None
    try:
        moment = _EPOCH + timedelta(seconds=_read_time(data).seconds)
    except OverflowError as error:
        raise Malformed("a time is out of range") from error
    return moment.replace(tzinfo=None).isoformat() + "Z"


def _decode_int_or_string(data: bytes) -> int | str:
    found = _read_int_or_string(data)
    return found.text if found.type else found.number


_when = BoundedCache(_decode_time).__getitem__

_META = message(
    Meta,
    name=text(1),
    namespace=name(3),
    uid=text(5),
    resource_version=text(6),
    creation_timestamp=one(8, _when),
    deletion_timestamp=one(9, _when),
    labels=mapping(11),
    annotations=mapping(12),
)

_PORT = message(
    ServicePortSpec,
    name=name(1),
    protocol=text(2, empty="TCP"),
    port=integer(3),
    target_port=one(4, _decode_int_or_string),
    node_port=integer(5),
)
_AFFINITY = message(
    SessionAffinityConfig, client_ip=one(1, message(ClientIPConfig, timeout_seconds=integer(1)))
)
_SERVICE_SPEC = message(
    ServiceSpec,
    ports=many(1, _PORT),
    cluster_ip=text(3),
    type=text(4, empty="ClusterIP"),
    external_ips=texts(5),
    session_affinity=text(7, empty="None"),
    load_balancer_source_ranges=texts(9),
    external_traffic_policy=text(11, empty=None),
    health_check_node_port=integer(12),
    session_affinity_config=one(14, _AFFINITY),
    cluster_ips=texts(18),
    ip_families=texts(19),
    internal_traffic_policy=text(22),
    traffic_distribution=text(23),
)
_INGRESS = message(Ingress, ip=text(1), ip_mode=text(3))
_SERVICE_STATUS = message(
    ServiceStatus, load_balancer=one(1, message(LoadBalancerStatus, ingress=many(1, _INGRESS)))
)

_CONDITIONS = message(Conditions, ready=flag(1), serving=flag(2), terminating=flag(3))
_HINT = BoundedCache(message(Hint, name=name(1))).__getitem__
_HINTS = message(Hints, for_zones=many(1, _HINT), for_nodes=many(2, _HINT))
_ENDPOINT = message(
    SliceEndpoint,
    addresses=texts(1),
    conditions=one(2, BoundedCache(_CONDITIONS).__getitem__),
    target_ref=one(4, message(TargetRef, kind=name(1), name=text(3))),
    node_name=name(6),
    zone=name(7),
    hints=one(8, BoundedCache(_HINTS).__getitem__),
)
_SLICE_PORT = message(SlicePort, name=name(1), protocol=name(2), port=integer(3))

_NODE_SPEC = message(
    NodeSpec, pod_cidr=text(1), taints=many(5, message(Taint, key=text(1))), pod_cidrs=texts(7)
)
_NODE_ADDRESS = message(NodeAddress, type=text(1), address=text(2))

READERS: dict[type[Any], Reader[Any]] = {
    Service: message(
        Service, metadata=one(1, _META), spec=one(2, _SERVICE_SPEC), status=one(3, _SERVICE_STATUS)
    ),
    EndpointSlice: message(
        EndpointSlice,
        metadata=one(1, _META),
        endpoints=many(2, _ENDPOINT),
        ports=many(3, BoundedCache(_SLICE_PORT).__getitem__),
        address_type=name(4),
    ),
    Node: message(
        Node,
        metadata=one(1, _META),
        spec=one(2, _NODE_SPEC),
        status=one(3, message(NodeStatus, addresses=many(5, _NODE_ADDRESS))),
    ),
    ServiceCIDR: message(
        ServiceCIDR, metadata=one(1, _META), spec=one(2, message(ServiceCIDRSpec, cidrs=texts(1)))
    ),
}
"""By struct, the reader of the kind of object it describes."""
