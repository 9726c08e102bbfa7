"""Chain names. Other tools and people know them, so they are upstream's to the letter.

Per-service names are a prefix and 16 characters of the base32 of a SHA-256 over the service port's printed name and
its protocol, for endpoints also `ip:port`. Sixteen characters are ten bytes, so only those are encoded.
"""

from __future__ import annotations

import base64
import hashlib
import re

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


def service_hash(name: ServicePortName) -> str:
    """What the names of a service port's chains share after their prefixes."""
    return _hash(f"{name}{name.protocol.lower}")


def endpoint_chain(name: ServicePortName, endpoint: str) -> str:
    """The chain of one endpoint, given as `ip:port`."""
    return ENDPOINT + _hash(f"{name}{name.protocol.lower}{endpoint}")


def is_service_chain(chain: str) -> bool:
    return SERVICE_CHAIN.fullmatch(chain) is not None


def _hash(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:10]).decode()
