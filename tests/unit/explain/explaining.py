"""Questions asked of objects planned the way `explain --manifests` does it."""

from __future__ import annotations

from typing import Any

from tests import factory

from pointsman.app.offline import plan_objects
from pointsman.config.defaults import with_mode
from pointsman.config.types import KubeProxyConfiguration
from pointsman.explain.answer import explain
from pointsman.explain.service_port import Explanation, ServicePortReport
from pointsman.explain.target import parse_target
from pointsman.explain.view import View
from pointsman.model.decision import ClientOutcome
from pointsman.model.objects import KubeObject, Node

CLUSTER_CIDR = "10.244.0.0/16"
NODE = factory.node(
    "n1",
    addresses=[
        {"type": "InternalIP", "address": "192.168.1.10"},
        {"type": "InternalIP", "address": "192.168.1.11"},
        {"type": "InternalIP", "address": "fd00::10"},
    ],
)


def view_of(*objects: KubeObject, mode: str = "nftables", node_name: str = "n1", **config: Any) -> View:
    """The view that manifests with these objects give on node n1."""
    settings = {"cluster_cidr": CLUSTER_CIDR, "hostname_override": node_name, **config}
    configured = with_mode(KubeProxyConfiguration(**settings), mode)
    known = objects if any(isinstance(item, Node) for item in objects) else (NODE, *objects)
    return plan_objects(known, configured).view


def asked(view: View, question: str, client: str = "") -> Explanation:
    return explain(view, parse_target(question), client)


def only_port(explanation: Explanation) -> ServicePortReport:
    assert len(explanation.ports) == 1, explanation
    return explanation.ports[0]


def path_of(view: View, question: str, kind: str, client: str) -> ClientOutcome:
    """What this client meets at the frontend of this kind."""
    port = only_port(asked(view, question, client))
    (frontend,) = [entry for entry in port.frontends if entry.kind == kind]
    (path,) = frontend.outcomes
    return path


def codes(explanation: Explanation) -> set[str]:
    """Codes of all findings."""
    return {cause.code for cause in explanation.findings} | {
        cause.code for port in explanation.ports for cause in port.findings
    }
