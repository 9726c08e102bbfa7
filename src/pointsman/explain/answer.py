"""From a view of the proxy and a question to the explanation. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pointsman.backends.contract import Difference, Mode
from pointsman.explain import unserved
from pointsman.explain.balancing import RESET_GONE, balancing_words, reset_causes
from pointsman.explain.causes import listed, port_causes, skipped_causes
from pointsman.explain.endpoint_users import other_ports, port_of_endpoint, service_ports_behind, use_of
from pointsman.explain.findings import file_findings, rejected_services, service_findings
from pointsman.explain.host import host_causes
from pointsman.explain.journey import journeys
from pointsman.explain.packets import Client, check_client, clients_of, node_port_denial, path
from pointsman.explain.report import (
    Cause,
    EndpointAnswer,
    Explanation,
    FrontendAnswer,
    HostAnswer,
    HostState,
    KernelAnswer,
    KernelState,
    Path,
    PolicyUse,
    PortAnswer,
)
from pointsman.explain.target import Target
from pointsman.explain.verdict import Verdict, verdict_of
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import address_text, family_of, host_port_text
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan, TopologyMode
from pointsman.model.service import ServicePortName
from pointsman.model.topology import endpoint_reason
from pointsman.text import find_similar

ADDRESSES_CONCERNED = 500
"""More are not looked at on the host, however many endpoints there are."""


def explain(view: View, target: Target, client: str = "") -> Explanation:
    """The explanation; raises BadQuestion when the client cannot be understood."""
    check_client(client, view.families)
    ports: list[PortAnswer] = []
    causes: list[Cause] = list(_troubles(view))
    if target.address is None:
        keys = service_keys(view, target)
        for key in keys:
            ports += _service_ports(view, target, key, client, causes)
        if len(keys) > 1:
            message = f"{target.service} exists in several namespaces: {listed(keys)}"
            causes.append(Cause("Ambiguous", message, "name one as NAMESPACE/SERVICE", fatal=False))
        if not keys and not _behind(view, target, client, ports, causes):
            causes.append(_not_found(view, target))
            causes += file_findings(view)
    else:
        ports += _at_address(view, target, client)
        if not ports and not _behind(view, target, client, ports, causes):
            causes += unserved.causes(view, target)
            causes += file_findings(view)
    return Explanation(
        question=target.text,
        node=view.node,
        mode=view.mode.name,
        live=view.live,
        ports=tuple(ports),
        causes=tuple(causes),
    )


def concerned_services(plans: Mapping[ServicePortName, ServicePlan], target: Target) -> frozenset[str]:
    """Keys of the Services whose slices the explanation will look at."""
    if target.address is None:
        found = {name.key for name in plans if name.service == target.service}
    else:
        found = {
            name.key
            for name, plan in plans.items()
            if any(
                f.address == target.address or (not f.address and f.port == target.number)
                for f in plan.frontends
            )
        }
    return frozenset(found or {name.key for name in service_ports_behind(plans, target)})


def addresses_concerned(family: FamilyView, target: Target, client: str) -> tuple[bytes, ...]:
    """Where packets of the question go to and come from: usable endpoints, and the client if it is named."""
    services = concerned_services(family.plans, target)
    found = {
        endpoint.address: None
        for name, plan in family.plans.items()
        if name.key in services
        for endpoint in plan.endpoints.reachable
    }
    clients = (one.address for one in clients_of(client, family) if one.address)
    return tuple(itertools.islice(found, ADDRESSES_CONCERNED)) + tuple(clients)


def service_keys(view: View, target: Target) -> list[str]:
    """Keys of the Services the target may mean: the namespace given, else `default`, else any."""
    if target.pod:
        return []
    known = {name.key for family in view.families for name in family.states}
    known |= view.service_findings.keys() | rejected_services(view)
    if target.namespace:
        wanted = f"{target.namespace}/{target.service}"
        return [wanted] if wanted in known else []
    found = sorted(key for key in known if key.partition("/")[2] == target.service)
    return [f"default/{target.service}"] if f"default/{target.service}" in found else found


def _not_found(view: View, target: Target) -> Cause:
    known = sorted(
        {name.key for family in view.families for name in family.states} | view.service_findings.keys()
    )
    asked = f"{target.namespace or 'default'}/{target.service}"
    names = {key.partition("/")[2] for key in known}
    close = [
        key
        for name in find_similar(target.service, names, 3)
        for key in known
        if key.partition("/")[2] == name
    ]
    advice = f"did you mean {listed(close)}?" if close else "does it exist, and in this namespace?"
    where = "is known to the running proxy" if view.live else "in the manifests"
    if target.pod:
        advice = (
            "pods are known by the EndpointSlices of Services; is it ready, and does a Service select it?"
        )
        return Cause("NoSuchPod", f"no endpoint of pod {target.service} {where}", advice)
    return Cause("NoSuchService", f"no Service {asked} {where} ({len(known)} Services known)", advice)


def _behind(view: View, target: Target, client: str, ports: list[PortAnswer], causes: list[Cause]) -> bool:
    """Answer a question about an endpoint; False when it is about none."""
    known = False
    others: dict[ServicePortName, tuple[Endpoint, ...]] = {}
    for family in view.families:
        for name, endpoints in service_ports_behind(family.plans, target).items():
            known = True
            asked = [endpoint for endpoint in endpoints if port_of_endpoint(endpoint, name, target)]
            if not asked:
                others[name] = endpoints
                continue
            plan = family.plans[name]
            ports.append(_port_answer(view, family, plan, plan.frontends, client))
            causes += (use_of(name, endpoint, _endpoint_answer(plan, endpoint, family)) for endpoint in asked)
    if not ports:
        causes += other_ports(target, others)
    return known


def _troubles(view: View) -> Iterator[Cause]:
    """What is wrong with the proxy itself."""
    if view.waiting_for:
        yield Cause("NotStarted", f"nothing is programmed yet: waiting for {view.waiting_for}")
    for family in view.families:
        if family.last_error:
            yield Cause(
                "SyncFailing",
                f"the last {family.family.value} sync failed, the rules before it stand: {family.last_error}",
                "new changes do not reach the kernel until this is repaired; the sync is retried",
                fatal=False,
            )


def _service_ports(
    view: View, target: Target, key: str, client: str, causes: list[Cause]
) -> Iterator[PortAnswer]:
    found = False
    others: set[str] = set()
    for family in view.families:
        for name in sorted(name for name in family.states if name.key == key):
            if not _port_matches(name, family.states[name].port.port, target):
                others.add(f"{name.port or family.states[name].port.port}/{name.protocol.name}")
                continue
            found = True
            plan = family.plans.get(name)
            if plan is None:
                causes.append(_contested(family, name))
            else:
                yield _port_answer(view, family, plan, plan.frontends, client)
    causes.extend(service_findings(view, key, served=found))
    if found:
        return
    if others:
        message = f"Service {key} has no port {target.port!r}, only {listed(sorted(others))}"
        causes.append(Cause("NoSuchPort", message))
    else:
        causes.extend(skipped_causes(key, view.service_findings.get(key, ())))


def _port_matches(name: ServicePortName, number: int, target: Target) -> bool:
    if target.protocol is not None and name.protocol is not target.protocol:
        return False
    return target.port in ("", name.port, str(number))


def _contested(family: FamilyView, name: ServicePortName) -> Cause:
    port = family.states[name].port
    holder = next(
        (
            other
            for other, plan in family.plans.items()
            if other.protocol is name.protocol
            and any(f.address == port.cluster_ip and f.port == port.port for f in plan.frontends)
        ),
        None,
    )
    if holder is None:
        return Cause("NotPlanned", f"{name} ({family.family.value}) is not planned yet; a sync is on its way")
    return Cause(
        "ContestedClusterIP",
        f"{name}: its cluster IP {host_port_text(port.cluster_ip, port.port)} is served by {holder}",
        "two Services have the same cluster IP; the older one keeps it. Recreate this one without clusterIP",
    )


def _at_address(view: View, target: Target, client: str) -> Iterator[PortAnswer]:
    """Every service port with a frontend at the address and port of the question."""
    for family in view.families:
        if target.address and family_of(target.address) is not family.family:
            continue
        found = {
            name: asked
            for name, plan in family.plans.items()
            if target.protocol in (None, name.protocol)
            and (
                asked := [f for f in plan.frontends if _frontend_matches(plan, f, target, family, view.mode)]
            )
        }
        for name in sorted(found):
            yield _port_answer(view, family, family.plans[name], found[name], client)


def _frontend_matches(
    plan: ServicePlan, frontend: Frontend, target: Target, family: FamilyView, mode: Mode
) -> bool:
    if target.number not in (0, frontend.port):
        return False
    if frontend.kind is FrontendKind.NODE_PORT:
        address = target.address or b""
        if not address:
            return True
        return target.number != 0 and not node_port_denial(address, plan.port.protocol, family, mode)
    return frontend.address == target.address


def _port_answer(
    view: View, family: FamilyView, plan: ServicePlan, asked: Sequence[Frontend], client: str
) -> PortAnswer:
    clients = clients_of(client, family)
    frontends = tuple(_frontend_answer(view, family, plan, f, f in asked, clients) for f in plan.frontends)
    paths = [p for frontend in frontends if frontend.asked for p in frontend.paths]
    failing = any(not entry.answered and not entry.restricted for entry in paths)
    kernel = _kernel(family, plan.name)
    in_kernel = list(_kernel_causes(family, plan.name, kernel))
    on_host = _on_host(view, family, plan, asked, clients)
    causes = [
        *in_kernel,
        *port_causes(family.states[plan.name].port, plan, family, view, failing, clients),
        *on_host,
    ]
    return PortAnswer(
        service=plan.name.key,
        port=plan.name.port,
        protocol=plan.name.protocol.name,
        family=family.family.value,
        number=plan.port.port,
        affinity_seconds=plan.port.service.affinity_seconds,
        topology=_topology(plan, family),
        balancing=balancing_words(plan),
        gone=RESET_GONE if plan.resets_gone else "",
        frontends=frontends,
        endpoints=tuple(_endpoint_answer(plan, endpoint, family) for endpoint in plan.endpoints.all),
        kernel=kernel,
        causes=tuple(causes),
        answers=_answers(paths, client) and not any(cause.fatal for cause in (*in_kernel, *on_host)),
        host=_host_answer(family, on_host),
    )


def _on_host(
    view: View,
    family: FamilyView,
    plan: ServicePlan,
    asked: Sequence[Frontend],
    clients: tuple[Client, ...],
) -> list[Cause]:
    if family.host is None:
        return []
    ways = tuple(journeys(view, family, family.host, plan, tuple(asked), clients))
    return [*host_causes(family, family.host, ways), *reset_causes(plan, family.host, view.mode)]


def _host_answer(family: FamilyView, causes: Sequence[Cause]) -> HostAnswer:
    if family.host is None:
        return HostAnswer(HostState.NOT_ASKED)
    return HostAnswer(HostState.HINDERED if causes else HostState.CLEAR, family.host.not_read)


def _answers(paths: Iterable[Path], client: str) -> bool:
    """Everybody is answered; a restriction asked for by source ranges counts only against a client that was named."""
    met = (entry.answered for entry in paths if client or not entry.restricted)
    return verdict_of(met) is Verdict.ANSWERS


def _frontend_answer(
    view: View,
    family: FamilyView,
    plan: ServicePlan,
    frontend: Frontend,
    asked: bool,
    clients: tuple[Client, ...],
) -> FrontendAnswer:
    return FrontendAnswer(
        kind=frontend.kind.value,
        address=_frontend_text(frontend, family),
        policy="Local" if frontend.local_policy else "Cluster",
        asked=asked,
        source_ranges=tuple(str(cidr) for cidr in frontend.source_ranges),
        paths=tuple(path(plan, frontend, client, family, view.mode) for client in clients),
        places=tuple(host_port_text(address, frontend.port) for address in _addresses_of(frontend, family)),
    )


def _addresses_of(frontend: Frontend, family: FamilyView) -> tuple[bytes, ...]:
    if frontend.address:
        return (frontend.address,)
    where = family.context.node_port_addresses
    return family.context.node_ips if where.match_all else tuple(where.addresses)


def _frontend_text(frontend: Frontend, family: FamilyView) -> str:
    if frontend.kind is not FrontendKind.NODE_PORT:
        return host_port_text(frontend.address, frontend.port)
    where = family.context.node_port_addresses
    addresses = "every address of this node"
    if not where.match_all:
        addresses = listed(address_text(address) for address in where.addresses) or "no address of this node"
    return f"port {frontend.port} at {addresses}"


def _topology(plan: ServicePlan, family: FamilyView) -> str:
    if plan.endpoints.topology is TopologyMode.NODE:
        return f"hints select endpoints for node {family.context.node_name}"
    if plan.endpoints.topology is TopologyMode.ZONE:
        return f"hints select endpoints for zone {family.context.zone}"
    return plan.endpoints.topology_note


def _endpoint_answer(plan: ServicePlan, endpoint: Endpoint, family: FamilyView) -> EndpointAnswer:
    uses: list[PolicyUse] = []
    for local in sorted({frontend.local_policy for frontend in plan.frontends}):
        used, reason = endpoint_reason(
            plan,
            endpoint,
            local_policy=local,
            node_name=family.context.node_name,
            zone=family.context.zone,
        )
        uses.append(PolicyUse("Local" if local else "Cluster", used, reason))
    return EndpointAnswer(
        str(endpoint), endpoint.node, endpoint.zone, endpoint.local, tuple(uses), endpoint.pod
    )


def _kernel(family: FamilyView, name: ServicePortName) -> KernelAnswer:
    if family.differences is None:
        return KernelAnswer(KernelState.NOT_ASKED)
    found = [entry for entry in family.differences if _concerns(entry, name)]
    if not found:
        return KernelAnswer(KernelState.PRESENT)
    state = KernelState.DIFFERENT if any(entry.have for entry in found) else KernelState.MISSING
    return KernelAnswer(state, tuple(found))


def _concerns(entry: Difference, name: ServicePortName) -> bool:
    """Whether it is about this service port: its own objects, and shared ones that are missing or changed; not what others left over."""
    return entry.owner == name if entry.owner else bool(entry.want)


def _kernel_causes(family: FamilyView, name: ServicePortName, kernel: KernelAnswer) -> Iterator[Cause]:
    if name in family.rejected:
        yield Cause("KernelRefused", f"the kernel refused its rules: {family.rejected[name]}")
    if name in family.unsynced:
        yield Cause("NotSyncedYet", "its latest change is not in the kernel yet", fatal=False)
    if kernel.differences:
        what = listed(entry.what for entry in kernel.differences)
        yield Cause(
            "KernelDiffers",
            f"the kernel does not hold what it should: {what}",
            "somebody else changed the rules, or a sync is under way; `pointsman verify` lists everything",
        )
