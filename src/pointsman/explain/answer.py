"""Resolve a question to service ports and explain them. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from pointsman.backends.contract import Mode
from pointsman.explain.build import explain_endpoint, explain_plan
from pointsman.explain.checks import (
    build_error,
    build_warning,
    check_files,
    check_objects,
    check_unserved,
    find_conflict,
    find_lost_claims,
    find_rejected_services,
    refer_to,
)
from pointsman.explain.packets import check_client, find_node_port_denial, parse_clients
from pointsman.explain.service_port import Explanation, ServicePortReport
from pointsman.explain.target import EVERYWHERE, Target
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import family_of, host_port_text
from pointsman.model.endpoint import Endpoint
from pointsman.model.findings import CONFLICTS, Code, Finding, Severity
from pointsman.model.plan import Frontend, FrontendKind, ServicePlan
from pointsman.model.service import ServicePortName
from pointsman.text import find_similar
from pointsman.wording.findings import describe
from pointsman.wording.outcomes import describe_endpoint

MAX_ADDRESSES = 500
"""Addresses looked up on the host, however many endpoints there are."""
MAX_OTHER_CLAIMS = 20
"""Service ports named that request an address and do not get it."""


def explain(view: View, target: Target, client: str = "") -> Explanation:
    """Return the explanation; raises BadQuestion when the client cannot be parsed."""
    check_client(client, view.families)
    families = {family.family.value for family in view.families if parse_clients(client, family)}
    ports: list[ServicePortReport] = []
    findings: list[Finding] = list(_check_proxy(view))
    if target.address is None:
        keys = find_services(view, target)
        for key in keys:
            of_service, about_service = _explain_service(view, target, key, client)
            ports += of_service
            findings += about_service
        if len(keys) > 1 and target.namespace != EVERYWHERE:
            findings.append(build_warning(Code.AMBIGUOUS, service=target.service, services=tuple(keys)))
        found = bool(keys)
    else:
        ports += _explain_address(view, target, client)
        if target.address:
            others = _find_other_claims(view, target.address, target)
            findings += itertools.islice(others, MAX_OTHER_CLAIMS)
        found = bool(ports)
    if not found:
        of_endpoint = _explain_endpoint(view, target, client)
        if of_endpoint is not None:
            ports += of_endpoint[0]
            findings += of_endpoint[1]
        else:
            findings += _explain_unknown(view, target)
    of_client = tuple(port for port in ports if port.family in families)
    if ports and not of_client:
        findings.append(build_error(Code.CLIENT_OF_OTHER_FAMILY, address=client, family=ports[0].family))
    return Explanation(
        question=target.text,
        node=view.node,
        mode=view.mode.name,
        live=view.live,
        ports=of_client,
        findings=tuple(map(describe, findings)),
    )


def find_concerned_services(plans: Mapping[ServicePortName, ServicePlan], target: Target) -> frozenset[str]:
    """Return the keys of the Services whose slices the explanation needs."""
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
    return frozenset(found or {name.key for name in _find_endpoints(plans, target)})


def find_concerned_addresses(family: FamilyView, target: Target, client: str) -> tuple[bytes, ...]:
    """Return where packets of the question go to and come from: usable endpoints, and the client if it is named."""
    services = find_concerned_services(family.plans, target)
    found = {
        endpoint.address: None
        for name, plan in family.plans.items()
        if name.key in services
        for endpoint in plan.endpoints.reachable
    }
    clients = (one.address for one in parse_clients(client, family) if one.address)
    return tuple(itertools.islice(found, MAX_ADDRESSES)) + tuple(clients)


def find_services(view: View, target: Target) -> list[str]:
    """Return the keys of the Services the target may mean: in its namespace, else in `default`, else in any."""
    if target.pod:
        return []
    known = _list_services(view) | find_rejected_services(view)
    if target.namespace not in ("", EVERYWHERE):
        wanted = f"{target.namespace}/{target.service}"
        return [wanted] if wanted in known else []
    found = sorted(key for key in known if key.partition("/")[2] == target.service)
    if target.namespace == EVERYWHERE:
        return found
    return [f"default/{target.service}"] if f"default/{target.service}" in found else found


def _list_services(view: View) -> set[str]:
    return {name.key for family in view.families for name in family.states} | view.service_findings.keys()


def _explain_unknown(view: View, target: Target) -> Iterator[Finding]:
    """Yield why the target is neither a Service, nor one of its addresses, nor an endpoint."""
    if target.address is None:
        yield _build_not_found(view, target)
    else:
        yield from check_unserved(view, target)
    yield from check_files(view)


def _build_not_found(view: View, target: Target) -> Finding:
    source = "proxy" if view.live else "manifests"
    if target.pod:
        return build_error(Code.NO_SUCH_POD, pod=target.service, source=source)
    known = sorted(_list_services(view))
    close = find_similar(target.service, {key.partition("/")[2] for key in known}, 3)
    return build_error(
        Code.NO_SUCH_SERVICE,
        service=target.service
        if target.namespace == EVERYWHERE
        else f"{target.namespace or 'default'}/{target.service}",
        known=len(known),
        source=source,
        similar=tuple(key for name in close for key in known if key.partition("/")[2] == name),
    )


def _check_proxy(view: View) -> Iterator[Finding]:
    if view.waiting_for:
        yield build_error(Code.NOT_STARTED, waitingFor=view.waiting_for)
    for family in view.families:
        if family.last_error:
            yield build_warning(Code.SYNC_FAILING, family=family.family.value, error=family.last_error)


def _explain_service(
    view: View, target: Target, key: str, client: str
) -> tuple[list[ServicePortReport], list[Finding]]:
    """Return the ports of one Service that the target means, and findings about the Service as a whole."""
    ports: list[ServicePortReport] = []
    findings: list[Finding] = []
    found = False
    others: set[str] = set()
    for family in view.families:
        for name in sorted(name for name in family.states if name.key == key):
            number = family.states[name].port.port
            if not _matches_port(name, number, target):
                others.add(f"{name.port or number}/{name.protocol.name}")
                continue
            found = True
            plan = family.plans.get(name)
            if plan is None:
                conflict = find_conflict(family, name)
                findings.append(conflict.about(refer_to(key, name.port)))
            else:
                ports.append(explain_plan(view, family, plan, plan.frontends, client))
    findings += check_objects(view, key, served=found or bool(others))
    if others and not found:
        findings.append(
            build_error(Code.NO_SUCH_PORT, service=key, port=repr(target.port), ports=tuple(sorted(others)))
        )
    return ports, findings


def _matches_port(name: ServicePortName, number: int, target: Target) -> bool:
    if target.protocol is not None and name.protocol is not target.protocol:
        return False
    return target.port in ("", name.port, str(number))


def _explain_address(view: View, target: Target, client: str) -> Iterator[ServicePortReport]:
    """Yield every service port with a frontend at the address and port of the question."""
    for family in view.families:
        if target.address and family_of(target.address) is not family.family:
            continue
        found = {
            name: asked
            for name, plan in family.plans.items()
            if target.protocol in (None, name.protocol)
            and (
                asked := [f for f in plan.frontends if _matches_frontend(plan, f, target, family, view.mode)]
            )
        }
        for name in sorted(found):
            yield explain_plan(view, family, family.plans[name], found[name], client)


def _find_other_claims(view: View, address: bytes, target: Target) -> Iterator[Finding]:
    """Yield service ports that request the address and port of the question and lost them to another one."""
    for family in view.families:
        if family_of(address) is not family.family:
            continue
        for name, lost in find_lost_claims(family, target, address):
            holder = str(lost.parameters.get("holder", ""))
            if lost.code in CONFLICTS and holder:
                place = host_port_text(address, family.states[name].port.port)
                yield build_warning(Code.ALSO_REQUESTED, servicePort=str(name), frontend=place, holder=holder)


def _matches_frontend(
    plan: ServicePlan, frontend: Frontend, target: Target, family: FamilyView, mode: Mode
) -> bool:
    if target.number not in (0, frontend.port):
        return False
    if frontend.kind is FrontendKind.NODE_PORT:
        address = target.address or b""
        if not address:
            return True
        return target.number != 0 and not find_node_port_denial(address, plan.port.protocol, family, mode)
    return frontend.address == target.address


def _explain_endpoint(
    view: View, target: Target, client: str
) -> tuple[list[ServicePortReport], list[Finding]] | None:
    """Return the service ports that have the endpoint, and how each uses it; None when the target is no endpoint."""
    ports: list[ServicePortReport] = []
    findings: list[Finding] = []
    others: dict[ServicePortName, tuple[Endpoint, ...]] = {}
    for family in view.families:
        for name, endpoints in _find_endpoints(family.plans, target).items():
            asked = [endpoint for endpoint in endpoints if _matches_endpoint_port(endpoint, name, target)]
            if not asked:
                others[name] = endpoints
                continue
            plan = family.plans[name]
            ports.append(explain_plan(view, family, plan, plan.frontends, client))
            findings += (_check_use(family, plan, endpoint) for endpoint in asked)
    if not ports and others:
        at = tuple(f"{e.port}/{name.protocol.name} ({name})" for name, found in others.items() for e in found)
        findings.append(
            build_error(Code.WRONG_ENDPOINT_PORT, ports=at, port=target.port or str(target.number))
        )
    return (ports, findings) if ports or others else None


def _find_endpoints(
    plans: Mapping[ServicePortName, ServicePlan], target: Target
) -> dict[ServicePortName, tuple[Endpoint, ...]]:
    """Return the endpoints that the target means, by service port in order; their ports are not compared."""
    found = {
        name: endpoints
        for name, plan in plans.items()
        if target.protocol in (None, name.protocol)
        and target.namespace in ("", EVERYWHERE, name.namespace)
        and (endpoints := tuple(e for e in plan.endpoints.all if _matches_endpoint(e, target)))
    }
    return dict(sorted(found.items()))


def _matches_endpoint(endpoint: Endpoint, target: Target) -> bool:
    if target.address is None:
        return bool(target.service) and endpoint.pod == target.service
    return endpoint.address == target.address


def _matches_endpoint_port(endpoint: Endpoint, name: ServicePortName, target: Target) -> bool:
    """Return whether the port of the question, if it has one, is this endpoint's."""
    if target.address is not None:
        return target.number in (0, endpoint.port)
    return target.port in ("", name.port, str(endpoint.port))


def _check_use(family: FamilyView, plan: ServicePlan, endpoint: Endpoint) -> Finding:
    text = describe_endpoint(endpoint.pod, endpoint.node)
    place = f"{endpoint} ({text})" if text else str(endpoint)
    uses = explain_endpoint(plan, endpoint, family).uses
    name = str(plan.name)
    if any(use.used for use in uses):
        parameters = {"endpoint": place, "servicePort": name}
        return Finding(Code.ENDPOINT_USED, Severity.NOTICE, parameters=parameters)
    reasons = " and ".join(dict.fromkeys(use.message for use in uses))
    return build_error(Code.ENDPOINT_NOT_USED, endpoint=place, servicePort=name, reasons=reasons)
