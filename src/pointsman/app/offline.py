"""From manifests to what a node would program, without a kernel, a cluster or privileges.

The same tracker, planning and context as in the running proxy; only the backend is replaced by one that keeps the
request it is given. `render`, `explain` and `render --diff` start here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from pointsman.backends import mode_named
from pointsman.backends.contract import Backend, SyncReport, SyncRequest
from pointsman.config.gates import FeatureGates
from pointsman.config.options import RunOptions
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import ConfigError
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import LOCALHOST, Family, address_from_text
from pointsman.model.balancing import DEFAULT_BALANCING, BalancingDefaults
from pointsman.model.findings import Finding
from pointsman.model.node_context import build_node_facts
from pointsman.model.objects import EndpointSlice, KubeObject, Meta, Node, Service, ServiceCIDR
from pointsman.model.service_findings import ServiceFindings
from pointsman.model.tracker import Tracker
from pointsman.node.state import build_node_context, parse_pod_ranges
from pointsman.report.labels import ServiceLabels
from pointsman.source.manifest_files import load_objects
from pointsman.sync.reconcile import Reconciler
from pointsman.text import did_you_mean
from pointsman.wording.findings import render_finding

BOTH_FAMILIES = (Family.IPV4, Family.IPV6)


class RequestKeeper(Backend):
    """A backend without a kernel: it keeps what it was asked to program."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.request: SyncRequest | None = None

    def sync(self, request: SyncRequest) -> SyncReport:
        self.request = msgspec.structs.replace(request, plans=dict(request.plans))
        return SyncReport(full=request.full)


class Planned(msgspec.Struct, frozen=True):
    """What a node would program for the manifests."""

    node_name: str
    config: KubeProxyConfiguration
    requests: Mapping[Family, SyncRequest]
    view: View
    labels: ServiceLabels
    problems: tuple[str, ...]
    """Everything in the manifests that is not used, and assumptions made about the node."""


def plan_manifests(
    paths: Sequence[Path],
    options: RunOptions,
    *,
    families: Sequence[Family] = BOTH_FAMILIES,
    local_addresses: Mapping[Family, Sequence[bytes]] | None = None,
) -> Planned:
    """Plan everything below these paths for the node the options name; `options.config.mode` must be decided.

    Raises ConfigError when there is nothing to read or the node is unknown.
    """
    objects, findings = load_objects(*paths)
    if not objects:
        raise ConfigError(
            [render_finding(finding) for finding in findings]
            or [f"{', '.join(map(str, paths))}: holds no Service, EndpointSlice, Node or ServiceCIDR"]
        )
    return plan_objects(
        objects,
        options.config,
        families=families,
        external_allow=options.external_ip_allow_cidrs,
        balancing=options.balancing,
        local_addresses=local_addresses,
        findings=findings,
    )


def plan_objects(
    objects: Sequence[KubeObject],
    config: KubeProxyConfiguration,
    *,
    families: Sequence[Family] = BOTH_FAMILIES,
    external_allow: Sequence[str] = (),
    balancing: BalancingDefaults = DEFAULT_BALANCING,
    local_addresses: Mapping[Family, Sequence[bytes]] | None = None,
    findings: Sequence[Finding] = (),
) -> Planned:
    """Plan these objects, as `plan_manifests` does."""
    notes = [render_finding(finding) for finding in findings]
    node_name, node = _find_node(objects, config.hostname_override, notes)
    facts = build_node_facts(node_name, node, config.bind_address)
    services = [item for item in objects if isinstance(item, Service)]
    service_cidrs = [c for item in objects if isinstance(item, ServiceCIDR) for c in item.spec.cidrs or ()]
    addresses = local_addresses or {family: _list_node_addresses(node, family) for family in families}
    service_findings = ServiceFindings()
    for service in services:
        service_findings.upsert_service(service)

    def on_finding(meta: Meta, finding: Finding) -> None:
        service_findings.add(meta, finding)
        notes.append(render_finding(finding))

    views: list[FamilyView] = []
    requests: dict[Family, SyncRequest] = {}
    for family in families:
        context = build_node_context(
            config,
            family,
            facts,
            local_addresses=addresses[family],
            service_cidrs=service_cidrs,
            external_allow=external_allow,
            balancing=balancing,
        )
        tracker = _track(objects, family, node_name, config, on_finding)
        keeper = RequestKeeper(family)
        outcome = Reconciler(keeper, families=len(families)).sync(tracker.take(), context)
        notes += [render_finding(finding) for finding in outcome.findings]
        assert keeper.request is not None
        requests[family] = keeper.request
        views.append(
            FamilyView(
                context=context,
                plans=keeper.request.plans,
                states=tracker.states,
                slices={
                    one.metadata.key: tracker.slices.count_endpoints(one.metadata.key) for one in services
                },
                node_addresses=tuple({*addresses[family], *context.node_ips}),
                localhost_node_ports=mode_named(config.mode).localhost_node_ports(config),
                pod_ranges=parse_pod_ranges(facts),
            )
        )
    view = View(
        node=node_name,
        mode=mode_named(config.mode),
        live=False,
        families=tuple(views),
        service_findings=service_findings.all(),
        source_findings=tuple(findings),
    )
    return Planned(node_name, config, requests, view, ServiceLabels(services), tuple(dict.fromkeys(notes)))


def _track(
    objects: Sequence[KubeObject],
    family: Family,
    node_name: str,
    config: KubeProxyConfiguration,
    on_finding: Callable[[Meta, Finding], None],
) -> Tracker:
    """Return a tracker of all Services, then of all EndpointSlices."""
    allow_external = FeatureGates(config.feature_gates).enabled("AllowServiceExternalIPs")
    tracker = Tracker(family, node_name, allow_external_ips=allow_external, on_finding=on_finding)
    for item in objects:
        if isinstance(item, Service):
            tracker.upsert_service(item)
    for item in objects:
        if isinstance(item, EndpointSlice):
            tracker.upsert_slice(item)
    return tracker


def _find_node(objects: Sequence[KubeObject], wanted: str, notes: list[str]) -> tuple[str, Node | None]:
    """Return the node to plan for: the one named, the only one, or the one with the name of this host."""
    nodes = {item.metadata.name: item for item in objects if isinstance(item, Node)}
    if wanted:
        if nodes and wanted not in nodes:
            known = ", ".join(sorted(nodes))
            meant = did_you_mean(wanted, nodes)
            raise ConfigError([f"no Node {wanted} in the manifests (they hold {known}){meant}"])
        return wanted, nodes.get(wanted)
    if len(nodes) == 1:
        return next(iter(nodes.items()))
    host = socket.gethostname().strip().lower()
    if len(nodes) > 1 and host not in nodes:
        raise ConfigError(
            [f"the manifests contain {len(nodes)} Nodes: choose one with --node ({', '.join(sorted(nodes))})"]
        )
    if not nodes:
        notes.append(f"no Node in the manifests: planning for {host} without addresses and zone; see --node")
    return host, nodes.get(host)


def _list_node_addresses(node: Node | None, family: Family) -> tuple[bytes, ...]:
    """Return what the interfaces presumably hold: loopback and the addresses that the Node object lists."""
    listed = (node.status.addresses if node is not None else None) or ()
    found = [address_from_text(entry.address) for entry in listed if entry.type.endswith("IP")]
    length = family.address_length
    return (LOCALHOST[family], *(one for one in found if one is not None and len(one) == length))
