"""State of this node as far as rules depend on it, and the NodeContext of each IP family that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pointsman.backends import mode_named
from pointsman.config.node_check import check_config_on_node
from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.addresses import Cidr, Family, cidr_from_text, is_link_local, is_loopback
from pointsman.model.balancing import DEFAULT_BALANCING, BalancingDefaults, Capabilities, Scheduler
from pointsman.model.findings import Finding, Severity
from pointsman.model.node_context import (
    NodeContext,
    NodeFacts,
    build_local_detector,
    build_node_facts,
    find_host_ips,
    resolve_node_port_addresses,
)
from pointsman.model.objects import Node
from pointsman.wording.findings import render_message

SERVICE_RANGE_WAIT_SECONDS = 5.0
"""How long the first sync waits for service ranges. They refine a few rules, so a server that cannot list them does not keep
this node from serving; kube-proxy does not wait at all."""

NODE_WAIT_SECONDS = 30.0
"""How long the first sync waits for the Node object and its addresses, once Nodes could be listed, as kube-proxy does."""

POD_RANGE_WAIT_SECONDS = 300.0
"""How much longer it waits for the Node's pod range where detectLocalMode needs it; then the process ends, as kube-proxy does."""


class Settings(msgspec.Struct, frozen=True):
    """Settings of a proxy that are fixed at its start."""

    config: KubeProxyConfiguration
    node_name: str
    external_allow: Sequence[str] = ()
    balancing: BalancingDefaults = BalancingDefaults()
    from_manifests: bool = False
    node_wait: float = NODE_WAIT_SECONDS
    pod_range_wait: float = POD_RANGE_WAIT_SECONDS
    service_range_wait: float = SERVICE_RANGE_WAIT_SECONDS


class NodeState:
    """Configuration, Node object, own addresses and service ranges. Each setter returns whether rules may change."""

    def __init__(self, settings: Settings, addresses: Mapping[Family, tuple[bytes, ...]]) -> None:
        self.settings = settings
        self.config = settings.config
        self.addresses = addresses
        self.node_object: Node | None = None
        self._service_cidrs: dict[str, tuple[str, ...]] = {}
        self.facts, self._contexts = self._compute()

    @property
    def name(self) -> str:
        return self.settings.node_name

    @property
    def has_addresses(self) -> bool:
        """The Node object lists some."""
        return self.node_object is not None and bool(find_host_ips(self.node_object))

    @property
    def lacks_pod_range(self) -> bool:
        """DetectLocalMode needs the Node's pod range, and it has none yet."""
        return self.config.detect_local_mode == "NodeCIDR" and not self.facts.pod_cidrs

    def context(self, family: Family) -> NodeContext:
        return self._contexts[family]

    def check_config(self, config: KubeProxyConfiguration) -> tuple[Finding, ...]:
        """Return how a configuration does not fit this node. Manifests may have less than a cluster: no errors there."""
        found = check_config_on_node(config, self.facts, self.addresses)
        if self.settings.from_manifests:
            return tuple(msgspec.structs.replace(one, severity=Severity.WARNING) for one in found)
        return found

    def find_config_errors(self, config: KubeProxyConfiguration) -> list[str]:
        """Return what keeps a proxy with this configuration from starting on this node."""
        return [render_message(finding) for finding in self.check_config(config) if finding.is_error]

    def set_config(self, config: KubeProxyConfiguration) -> bool:
        self.config = config
        return self._update()

    def set_node(self, node: Node) -> bool:
        self.node_object = node
        return self._update()

    def set_addresses(self, addresses: Mapping[Family, tuple[bytes, ...]]) -> bool:
        self.addresses = addresses
        return self._update()

    def set_service_ranges(self, key: str, cidrs: Iterable[str] | None) -> bool:
        """Take the ranges of a ServiceCIDR object, None when it is deleted."""
        if cidrs is None:
            self._service_cidrs.pop(key, None)
        else:
            self._service_cidrs[key] = tuple(cidrs)
        return self._update()

    def _update(self) -> bool:
        before = self._contexts
        self.facts, self._contexts = self._compute()
        return self._contexts != before

    def _compute(self) -> tuple[NodeFacts, dict[Family, NodeContext]]:
        facts = build_node_facts(
            self.name, self.node_object, self.config.bind_address, self._find_fallback_ips()
        )
        service_cidrs = [text for texts in self._service_cidrs.values() for text in texts]
        return facts, {
            family: build_node_context(
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

    def _find_fallback_ips(self) -> list[bytes]:
        """Return the first routable address of each family, IPv4 first, for manifests without a Node; none for an API server."""
        if not self.settings.from_manifests:
            return []
        routable = (
            next((one for one in self.addresses.get(family, ()) if _is_routable(one)), None)
            for family in (Family.IPV4, Family.IPV6)
        )
        return [address for address in routable if address is not None]


def _is_routable(address: bytes) -> bool:
    return not is_loopback(address) and not is_link_local(address)


def build_node_context(
    config: KubeProxyConfiguration,
    family: Family,
    node: NodeFacts,
    *,
    local_addresses: Sequence[bytes],
    service_cidrs: Iterable[str] = (),
    external_allow: Iterable[str] = (),
    balancing: BalancingDefaults = DEFAULT_BALANCING,
) -> NodeContext:
    """Return the context; `config.mode` must be decided, `local_addresses` are those of this family."""
    node_ips = node.ips_of(family)
    capabilities = mode_named(config.mode).capabilities
    return NodeContext(
        family=family,
        node_name=node.name,
        node_ips=node_ips,
        zone=node.zone,
        local=build_local_detector(
            config.detect_local_mode,
            family,
            cluster_cidrs=config.cluster_cidrs,
            pod_cidrs=node.pod_cidrs,
            bridge_interface=config.detect_local.bridge_interface,
            interface_prefix=config.detect_local.interface_name_prefix,
        ),
        node_port_addresses=resolve_node_port_addresses(
            config.node_port_addresses,
            family,
            node_ips=node_ips,
            local_addresses=local_addresses,
        ),
        service_cidrs=_parse_cidrs(service_cidrs, family),
        masquerade_all=config.masquerade_all,
        masquerade_bit=config.masquerade_bit,
        external_allow=_parse_cidrs(external_allow, family),
        addresses_in_rules=tuple(sorted(local_addresses)) if capabilities.uses_local_addresses else (),
        balancing=_limit_balancing(balancing, capabilities),
    )


def _limit_balancing(requested: BalancingDefaults, capabilities: Capabilities) -> BalancingDefaults:
    """Return the configured defaults with what the mode can do, without a default scheduler where the mode has its own."""
    scheduler = Scheduler.RANDOM if capabilities.has_default_scheduler else requested.scheduler
    return msgspec.structs.replace(requested, scheduler=scheduler, capabilities=capabilities)


def parse_pod_ranges(node: NodeFacts) -> tuple[Cidr, ...]:
    """Return the pod ranges of the Node, both families."""
    found = (cidr_from_text(text) for text in node.pod_cidrs)
    return tuple(cidr for cidr in found if cidr is not None)


def _parse_cidrs(texts: Iterable[str], family: Family) -> tuple[Cidr, ...]:
    found = (cidr_from_text(text) for text in texts)
    return tuple(sorted({cidr for cidr in found if cidr is not None and cidr.family is family}))
