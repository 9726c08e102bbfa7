"""Names of tables and chains: upstream's to the letter, because other programs and people depend on them."""

from __future__ import annotations

import re

FILTER, NAT, MANGLE = "filter", "nat", "mangle"
"""The tables of iptables. Services have rules in the first two."""

BUILT_IN = {
    FILTER: ("INPUT", "FORWARD", "OUTPUT"),
    NAT: ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    MANGLE: ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
}

PROXY_TABLE = "kube-proxy"
"""Of nftables mode: kube-proxy's own, so that each takes over from the other and either can clean up."""

TRACE_TABLE = "pointsman-trace"
"""Table of `pointsman trace`, in nf_tables."""

SERVICES = "KUBE-SERVICES"
POSTROUTING = "KUBE-POSTROUTING"
MARK_MASQUERADE = "KUBE-MARK-MASQ"
FORWARD = "KUBE-FORWARD"
PROXY_FIREWALL = "KUBE-PROXY-FIREWALL"

# iptables mode alone
EXTERNAL_SERVICES = "KUBE-EXTERNAL-SERVICES"
NODE_PORTS = "KUBE-NODEPORTS"
CANARY = "KUBE-PROXY-CANARY"
CLUSTER_POLICY = "KUBE-SVC-"
LOCAL_POLICY = "KUBE-SVL-"
EXTERNAL = "KUBE-EXT-"
FIREWALL = "KUBE-FW-"
ENDPOINT = "KUBE-SEP-"

# ipvs mode alone
IPVS_NODE_PORT = "KUBE-NODE-PORT"
IPVS_LOAD_BALANCER = "KUBE-LOAD-BALANCER"
IPVS_SOURCE_RANGES = "KUBE-SOURCE-RANGES-FIREWALL"
IPVS_FILTER = "KUBE-IPVS-FILTER"
IPVS_OUT_FILTER = "KUBE-IPVS-OUT-FILTER"

# the kubelet's
KUBELET_FIREWALL = "KUBE-FIREWALL"
KUBELET_TOO = frozenset((KUBELET_FIREWALL, POSTROUTING, MARK_MASQUERADE))
"""Chains of a proxy that some kubelets create as well."""
KUBELET_CHAINS = ("KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT")
"""Chains in table mangle that only a kubelet creates."""

_SERVICE_CHAIN = re.compile(r"KUBE-(?:SVC|SVL|EXT|FW|SEP|XLB)-\S+")
"""Every per-service chain of this and earlier versions of upstream."""

_PROXY_CHAINS = frozenset(
    (
        *(SERVICES, POSTROUTING, MARK_MASQUERADE, FORWARD, PROXY_FIREWALL, EXTERNAL_SERVICES, NODE_PORTS),
        *(IPVS_NODE_PORT, IPVS_LOAD_BALANCER, IPVS_SOURCE_RANGES, IPVS_FILTER, IPVS_OUT_FILTER),
        KUBELET_FIREWALL,
    )
)


def is_proxy_chain(chain: str) -> bool:
    """Return whether a chain is a service proxy's or the kubelet's, not one of the host's firewall."""
    return chain in _PROXY_CHAINS or is_service_chain(chain)


def is_service_chain(chain: str) -> bool:
    return _SERVICE_CHAIN.fullmatch(chain) is not None
