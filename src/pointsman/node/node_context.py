"""Configuration, node and machine into the NodeContext of one IP family. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pointsman.backends import mode_named
from pointsman.config.types import KubeProxyConfiguration
from pointsman.model.addresses import Cidr, Family, cidr_from_text
from pointsman.model.balancing import DEFAULT_BALANCING, BalancingDefaults, Capabilities, Scheduler
from pointsman.model.node import NodeFacts
from pointsman.model.node_context import NodeContext, build_local_detector, resolve_node_port_addresses


def node_context(
    config: KubeProxyConfiguration,
    family: Family,
    node: NodeFacts,
    *,
    local_addresses: Sequence[bytes],
    service_cidrs: Iterable[str] = (),
    external_allow: Iterable[str] = (),
    balancing: BalancingDefaults = DEFAULT_BALANCING,
) -> NodeContext:
    """The context; `config.mode` must be decided, `local_addresses` are those of this family."""
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
        service_cidrs=_of_family(service_cidrs, family),
        masquerade_all=config.masquerade_all,
        masquerade_bit=config.masquerade_bit,
        external_allow=_of_family(external_allow, family),
        addresses_in_rules=tuple(sorted(local_addresses)) if capabilities.uses_local_addresses else (),
        balancing=_balancing(balancing, capabilities),
    )


def _balancing(requested: BalancingDefaults, capabilities: Capabilities) -> BalancingDefaults:
    """The configured defaults, without a default scheduler where the mode has its own, and what the mode can do."""
    scheduler = Scheduler.RANDOM if capabilities.has_default_scheduler else requested.scheduler
    return msgspec.structs.replace(requested, scheduler=scheduler, capabilities=capabilities)


def pod_ranges(node: NodeFacts) -> tuple[Cidr, ...]:
    """The Node's own pod ranges, both families."""
    found = (cidr_from_text(text) for text in node.pod_cidrs)
    return tuple(cidr for cidr in found if cidr is not None)


def _of_family(texts: Iterable[str], family: Family) -> tuple[Cidr, ...]:
    found = (cidr_from_text(text) for text in texts)
    return tuple(sorted({cidr for cidr in found if cidr is not None and cidr.family is family}))
