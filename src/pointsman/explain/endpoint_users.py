"""Questions about an endpoint, by the name of its pod or by its address: which Services use it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pointsman.explain.report import Cause, EndpointAnswer
from pointsman.explain.target import Target
from pointsman.model.endpoint import Endpoint
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

_DIRECT = (
    "packets to its own address pass this proxy untouched: for those look at the pod and the network plugin"
)


def service_ports_behind(
    plans: Mapping[ServicePortName, ServicePlan], target: Target
) -> dict[ServicePortName, tuple[Endpoint, ...]]:
    """Every service port that has the endpoint asked about, sorted; the port of the question is not looked at."""
    found = {
        name: endpoints
        for name, plan in plans.items()
        if target.protocol in (None, name.protocol)
        and target.namespace in ("", name.namespace)
        and (endpoints := tuple(e for e in plan.endpoints.all if _meant(e, target)))
    }
    return dict(sorted(found.items()))


def _meant(endpoint: Endpoint, target: Target) -> bool:
    if target.address is None:
        return bool(target.service) and endpoint.pod == target.service
    return endpoint.address == target.address


def port_of_endpoint(endpoint: Endpoint, name: ServicePortName, target: Target) -> bool:
    """Whether the port of the question, if it has one, is this endpoint's."""
    if target.address is not None:
        return target.number in (0, endpoint.port)
    return target.port in ("", name.port, str(endpoint.port))


def use_of(name: ServicePortName, endpoint: Endpoint, answer: EndpointAnswer) -> Cause:
    """How this service port uses the endpoint, in a sentence."""
    words = described(endpoint.pod, endpoint.node)
    who = f"{endpoint} ({words})" if words else str(endpoint)
    used = any(use.used for use in answer.uses)
    if used:
        return Cause(
            "EndpointUsed", f"{who} is an endpoint of {name} and gets connections", _DIRECT, fatal=False
        )
    reasons = " and ".join(dict.fromkeys(use.reason for use in answer.uses))
    return Cause(
        "EndpointNotUsed", f"{who} is an endpoint of {name} and gets no connections from here: {reasons}"
    )


def described(pod: str, node: str) -> str:
    """Whose endpoint it is, as far as that is known."""
    return " ".join(filter(None, (f"pod {pod}" if pod else "", f"on {node}" if node else "")))


def other_ports(target: Target, behind: Mapping[ServicePortName, tuple[Endpoint, ...]]) -> Iterator[Cause]:
    """Said when the endpoint exists and the port of the question is not one that a Service leads to."""
    ports = ", ".join(
        f"{e.port}/{name.protocol.name} ({name})" for name, found in behind.items() for e in found
    )
    if ports:
        asked = target.port or target.number
        yield Cause("WrongPort", f"Services lead to this endpoint at {ports}, and not at {asked}", _DIRECT)
