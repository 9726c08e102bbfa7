"""Chain names. Other tools and people know them, so they are upstream's to the letter.

Per-service names are a prefix and 16 characters of the base32 of a SHA-256 over the service port's printed name and
its protocol, for endpoints also `ip:port`. Sixteen characters are ten bytes, so only those are encoded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from pointsman.model.service import ServicePortName

SERVICES = "KUBE-SERVICES"
EXTERNAL_SERVICES = "KUBE-EXTERNAL-SERVICES"
NODE_PORTS = "KUBE-NODEPORTS"
POSTROUTING = "KUBE-POSTROUTING"
MARK_MASQUERADE = "KUBE-MARK-MASQ"
FORWARD = "KUBE-FORWARD"
PROXY_FIREWALL = "KUBE-PROXY-FIREWALL"
KUBELET_FIREWALL = "KUBE-FIREWALL"
CANARY = "KUBE-PROXY-CANARY"
KUBELET_CHAINS = ("KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT")
"""Chains only a kubelet makes, in table mangle."""

CLUSTER_POLICY = "KUBE-SVC-"
LOCAL_POLICY = "KUBE-SVL-"
EXTERNAL = "KUBE-EXT-"
FIREWALL = "KUBE-FW-"
ENDPOINT = "KUBE-SEP-"

SERVICE_CHAIN = re.compile(r"KUBE-(?:SVC|SVL|EXT|FW|SEP|XLB)-\S+")
"""Every per-service chain of this and earlier versions of upstream."""


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
"""Base32 ten bits at a time: three times as fast as the base64 module, for tens of thousands of endpoints."""


def service_hash(name: ServicePortName) -> str:
    """What the names of a service port's chains share after their prefixes."""
    return _printed(hashlib.sha256(_identity(name)).digest())


def endpoint_chains(name: ServicePortName) -> Callable[[str], str]:
    """A function from an endpoint of this service port, given as `ip:port`, to the name of its chain."""
    start = hashlib.sha256(_identity(name))

    def chain(endpoint: str) -> str:
        state = start.copy()
        state.update(endpoint.encode())
        return ENDPOINT + _printed(state.digest())

    return chain


def is_service_chain(chain: str) -> bool:
    return SERVICE_CHAIN.fullmatch(chain) is not None


def _identity(name: ServicePortName) -> bytes:
    return f"{name}{name.protocol.lower}".encode(errors="surrogatepass")


def _printed(digest: bytes) -> str:
    bits = int.from_bytes(digest[:10], "big")
    pairs = _PAIRS
    return (
        pairs[bits >> 70]
        + pairs[bits >> 60 & 1023]
        + pairs[bits >> 50 & 1023]
        + pairs[bits >> 40 & 1023]
        + pairs[bits >> 30 & 1023]
        + pairs[bits >> 20 & 1023]
        + pairs[bits >> 10 & 1023]
        + pairs[bits & 1023]
    )
