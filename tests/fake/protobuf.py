"""Kubernetes objects in protobuf, from the dictionaries that JSON makes of them: the fake API server's side.

It has more fields than the proxy reads, so that there is something to skip, and shares no table and no code with the
reader. A value that does not fit the type of its field becomes as wrong in protobuf as it is in JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from tests.fake.apistore import KubeDict

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

Encode = Callable[[Any], bytes]
"""Makes the payload of a length-delimited field."""
Schema = dict[str, tuple[int, Any]]
"""Field number and type by JSON name: a Schema, a function below, or a list with one of them if repeated."""


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _delimited(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def string(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else b"\xff"


class Number:
    """int32, int64 and bool look alike."""


def time(value: Any) -> bytes:
    moment = datetime.fromisoformat(value)
    return b"\x08" + _varint(int(moment.timestamp())) + b"\x10\x00"


def string_map(value: dict[str, str]) -> list[bytes]:
    return [_delimited(1, string(key)) + _delimited(2, string(item)) for key, item in value.items()]


def int_or_string(value: Any) -> bytes:
    if isinstance(value, int):
        return b"\x08\x00\x10" + _varint(value) + b"\x1a\x00"
    return b"\x08\x01\x10\x00" + _delimited(3, string(value))


_OBJECT_META: Schema = {
    "name": (1, string),
    "generateName": (2, string),
    "namespace": (3, string),
    "selfLink": (4, string),
    "uid": (5, string),
    "resourceVersion": (6, string),
    "generation": (7, Number),
    "creationTimestamp": (8, time),
    "deletionTimestamp": (9, time),
    "deletionGracePeriodSeconds": (10, Number),
    "labels": (11, string_map),
    "annotations": (12, string_map),
    "finalizers": (14, [string]),
}
_LIST_META: Schema = {
    "selfLink": (1, string),
    "resourceVersion": (2, string),
    "continue": (3, string),
    "remainingItemCount": (4, Number),
}
_CONDITION: Schema = {
    "type": (1, string),
    "status": (2, string),
    "reason": (5, string),
    "message": (6, string),
}
_SERVICE_PORT: Schema = {
    "name": (1, string),
    "protocol": (2, string),
    "port": (3, Number),
    "targetPort": (4, int_or_string),
    "nodePort": (5, Number),
    "appProtocol": (6, string),
}
_SERVICE_SPEC: Schema = {
    "ports": (1, [_SERVICE_PORT]),
    "selector": (2, string_map),
    "clusterIP": (3, string),
    "type": (4, string),
    "externalIPs": (5, [string]),
    "sessionAffinity": (7, string),
    "loadBalancerIP": (8, string),
    "loadBalancerSourceRanges": (9, [string]),
    "externalName": (10, string),
    "externalTrafficPolicy": (11, string),
    "healthCheckNodePort": (12, Number),
    "publishNotReadyAddresses": (13, Number),
    "sessionAffinityConfig": (14, {"clientIP": (1, {"timeoutSeconds": (1, Number)})}),
    "ipFamilyPolicy": (17, string),
    "clusterIPs": (18, [string]),
    "ipFamilies": (19, [string]),
    "allocateLoadBalancerNodePorts": (20, Number),
    "loadBalancerClass": (21, string),
    "internalTrafficPolicy": (22, string),
    "trafficDistribution": (23, string),
}
_INGRESS: Schema = {"ip": (1, string), "hostname": (2, string), "ipMode": (3, string)}
_REFERENCE: Schema = {
    "kind": (1, string),
    "namespace": (2, string),
    "name": (3, string),
    "uid": (4, string),
    "apiVersion": (5, string),
}
_NAMED: Schema = {"name": (1, string)}
_ENDPOINT: Schema = {
    "addresses": (1, [string]),
    "conditions": (2, {"ready": (1, Number), "serving": (2, Number), "terminating": (3, Number)}),
    "hostname": (3, string),
    "targetRef": (4, _REFERENCE),
    "deprecatedTopology": (5, string_map),
    "nodeName": (6, string),
    "zone": (7, string),
    "hints": (8, {"forZones": (1, [_NAMED]), "forNodes": (2, [_NAMED])}),
}
_SLICE_PORT: Schema = {
    "name": (1, string),
    "protocol": (2, string),
    "port": (3, Number),
    "appProtocol": (4, string),
}
_NODE_SPEC: Schema = {
    "podCIDR": (1, string),
    "providerID": (3, string),
    "unschedulable": (4, Number),
    "taints": (5, [{"key": (1, string), "value": (2, string), "effect": (3, string)}]),
    "podCIDRs": (7, [string]),
}
_NODE_STATUS: Schema = {
    "phase": (3, string),
    "conditions": (4, [_CONDITION]),
    "addresses": (5, [{"type": (1, string), "address": (2, string)}]),
}
_STATUS: Schema = {
    "metadata": (1, _LIST_META),
    "status": (2, string),
    "message": (3, string),
    "reason": (4, string),
    "code": (6, Number),
}
SCHEMAS: dict[str, Schema] = {
    "Service": {
        "metadata": (1, _OBJECT_META),
        "spec": (2, _SERVICE_SPEC),
        "status": (3, {"loadBalancer": (1, {"ingress": (1, [_INGRESS])}), "conditions": (2, [_CONDITION])}),
    },
    "EndpointSlice": {
        "metadata": (1, _OBJECT_META),
        "endpoints": (2, [_ENDPOINT]),
        "ports": (3, [_SLICE_PORT]),
        "addressType": (4, string),
    },
    "Node": {"metadata": (1, _OBJECT_META), "spec": (2, _NODE_SPEC), "status": (3, _NODE_STATUS)},
    "ServiceCIDR": {"metadata": (1, _OBJECT_META), "spec": (2, {"cidrs": (1, [string])})},
    "Status": _STATUS,
}


def encoded(schema: Schema, value: Any) -> bytes:
    """The message of a dictionary; what the schema does not name is left out."""
    if not isinstance(value, dict):
        return b"\xff"
    return b"".join(
        _field(number, type_, value[name])
        for name, (number, type_) in schema.items()
        if value.get(name) is not None
    )


def _field(number: int, type_: Any, value: Any) -> bytes:
    if isinstance(type_, list):
        items = value if isinstance(value, list) else [value]
        return b"".join(_field(number, type_[0], item) for item in items)
    if type_ is string_map:
        return b"".join(_delimited(number, entry) for entry in string_map(value))
    if type_ is Number:
        if isinstance(value, int):
            return _varint(number << 3) + _varint(value)
        return _delimited(number, b"\xff")
    payload = encoded(type_, value) if isinstance(type_, dict) else type_(value)
    return _delimited(number, payload)


def envelope(kind: str, api_version: str, contents: bytes) -> bytes:
    """An object as it stands alone: marked, and with its type."""
    type_meta = _delimited(1, string(api_version)) + _delimited(2, string(kind))
    return b"k8s\0" + _delimited(1, type_meta) + _delimited(2, contents) + b"\x1a\x00\x22\x00"


def document(item: KubeDict) -> bytes:
    """One object, or a Status."""
    return envelope(item["kind"], item["apiVersion"], encoded(SCHEMAS[item["kind"]], item))


class Encoder:
    """Lists and watches; each version of an object is encoded once, so that a large cluster does not wait for it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, bytes]] = {}

    def listing(self, kind: str, api_version: str, metadata: KubeDict, items: Iterable[KubeDict]) -> bytes:
        parts = [_delimited(1, encoded(_LIST_META, metadata))]
        parts += [_delimited(2, self._contents(kind, item)) for item in items]
        return envelope(f"{kind}List", api_version, b"".join(parts))

    def frame(self, event: KubeDict) -> bytes:
        """An event of a watch, with its length in front."""
        item = event["object"]
        whole = envelope(item["kind"], item["apiVersion"], self._contents(item["kind"], item))
        message = _delimited(1, string(event["type"])) + _delimited(2, _delimited(1, whole))
        return struct.pack(">I", len(message)) + message

    def _contents(self, kind: str, item: KubeDict) -> bytes:
        metadata = item["metadata"]
        uid, version = metadata.get("uid", ""), metadata.get("resourceVersion", "")
        known, data = self._known.get(uid, ("", b""))
        if not uid or not version or known != version:
            data = encoded(SCHEMAS[kind], item)
            self._known[uid] = (version, data)
        return data
