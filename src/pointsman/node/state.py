"""State of this node as far as rules depend on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pointsman.config.doubts import Judgement, judged
from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.addresses import Family, is_link_local, is_loopback
from pointsman.model.balancing import BalancingDefaults
from pointsman.model.node import NodeFacts, build_node_facts, find_host_ips
from pointsman.model.node_context import NodeContext
from pointsman.model.objects import Node
from pointsman.node.node_context import node_context

SERVICE_RANGE_WAIT = 5.0
"""How long the first sync waits for service ranges. They refine a few rules, so a server that cannot list them does not keep
this node from serving; kube-proxy does not wait at all."""

NODE_WAIT = 30.0
"""How long the first sync waits for the Node object and its addresses, once Nodes could be listed, as kube-proxy does."""

POD_RANGE_WAIT = 300.0
"""How much longer it waits for the node's pod range where local pods are told by it; then the process ends, as kube-proxy does."""


class Settings(msgspec.Struct, frozen=True):
    """What the proxy is told at start."""

    config: KubeProxyConfiguration
    node_name: str
    external_allow: Sequence[str] = ()
    balancing: BalancingDefaults = BalancingDefaults()
    from_manifests: bool = False
    node_wait: float = NODE_WAIT
    pod_range_wait: float = POD_RANGE_WAIT
    service_range_wait: float = SERVICE_RANGE_WAIT


class NodeState:
    """Configuration, Node object, own addresses and service ranges; each change says whether rules may differ now."""

    def __init__(self, settings: Settings, addresses: Mapping[Family, tuple[bytes, ...]]) -> None:
        self.settings = settings
        self.config = settings.config
        self.addresses = addresses
        self.node_object: Node | None = None
        self._service_cidrs: dict[str, tuple[str, ...]] = {}
        self.facts, self._contexts = self._seen()

    @property
    def name(self) -> str:
        return self.settings.node_name

    @property
    def has_addresses(self) -> bool:
        """The Node object lists some; until then it is worth waiting for."""
        return self.node_object is not None and bool(find_host_ips(self.node_object))

    @property
    def lacks_pod_range(self) -> bool:
        """Local pods are told by the node's pod range, and it has none yet."""
        return self.config.detect_local_mode == "NodeCIDR" and not self.facts.pod_cidrs

    def context(self, family: Family) -> NodeContext:
        return self._contexts[family]

    def judged(self, config: KubeProxyConfiguration) -> Judgement:
        """How a configuration fits this node. Manifests may hold less than a cluster has, so nothing is a fault there."""
        found = judged(config, self.facts, self.addresses)
        if self.settings.from_manifests:
            return Judgement(doubts=(*found.doubts, *found.faults))
        return found

    def set_config(self, config: KubeProxyConfiguration) -> bool:
        self.config = config
        return self._changed()

    def set_node(self, node: Node) -> bool:
        self.node_object = node
        return self._changed()

    def set_addresses(self, addresses: Mapping[Family, tuple[bytes, ...]]) -> bool:
        self.addresses = addresses
        return self._changed()

    def set_service_ranges(self, key: str, cidrs: Iterable[str] | None) -> bool:
        """The ranges of a ServiceCIDR object, None when it is deleted."""
        if cidrs is None:
            self._service_cidrs.pop(key, None)
        else:
            self._service_cidrs[key] = tuple(cidrs)
        return self._changed()

    def _changed(self) -> bool:
        before = self._contexts
        self.facts, self._contexts = self._seen()
        return self._contexts != before

    def _seen(self) -> tuple[NodeFacts, dict[Family, NodeContext]]:
        facts = build_node_facts(self.name, self.node_object, self.config.bind_address, self._fallback_ips())
        service_cidrs = [text for texts in self._service_cidrs.values() for text in texts]
        return facts, {
            family: node_context(
                self.config,
                family,
                facts,
                local_addresses=addresses,
                service_cidrs=service_cidrs,
                external_allow=self.settings.external_allow,
                balancing=self.settings.balancing,
            )
            for family, addresses in self.addresses.items()
        }

    def _fallback_ips(self) -> list[bytes]:
        """With manifests there may be no Node object: the first routable address of each family, IPv4 first."""
        if not self.settings.from_manifests:
            return []
        routable = (
            next((one for one in self.addresses.get(family, ()) if _routable(one)), None)
            for family in (Family.IPV4, Family.IPV6)
        )
        return [address for address in routable if address is not None]


def _routable(address: bytes) -> bool:
    return not is_loopback(address) and not is_link_local(address)
