"""A namespace with the nft program as the independent reader, for the nftables tests."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping

import pytest

from pointsman.backends.contract import Difference, SyncRequest
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.lab.netns import LabUnavailable, Namespace
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

KEYWORD = {Family.IPV4: "ip", Family.IPV6: "ip6"}

needs_nft = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("nft") is None, reason="the nft program is the independent reader"),
]


def new_namespace() -> Namespace:
    try:
        namespace = Namespace()
    except LabUnavailable as error:
        pytest.skip(str(error))
    namespace.run(["ip", "link", "set", "lo", "up"])
    return namespace


def listing(namespace: Namespace) -> str:
    """The rule set as nft prints it, remaining times taken out.

    While the kernel still grows the hash tables of what was just written, a listing lacks some elements and has others twice, in
    another way each time: two listings that agree are taken as complete.
    """
    before, now = "", _listed(namespace)
    while now != before:
        before, now = now, _listed(namespace)
    return now


def _listed(namespace: Namespace) -> str:
    return re.sub(r" expires \w+", "", namespace.run(["nft", "list", "ruleset"]))


def table(namespace: Namespace, family: Family = Family.IPV4) -> str:
    return namespace.run(["nft", "list", "table", KEYWORD[family], "kube-proxy"])


def table_handle(namespace: Namespace, family: Family = Family.IPV4) -> str:
    """The kernel's number of our table: another one means another table."""
    first = namespace.run(["nft", "-a", "list", "table", KEYWORD[family], "kube-proxy"]).splitlines()[0]
    assert "# handle " in first
    return first


def everything(
    node: NodeContext, plans: Mapping[ServicePortName, ServicePlan], *, full: bool = True
) -> SyncRequest:
    return SyncRequest(node, plans, {}, full)


def part(
    node: NodeContext,
    plans: Mapping[ServicePortName, ServicePlan],
    *changed: ServicePortName,
) -> SyncRequest:
    return SyncRequest(node, plans, {name: plans.get(name) for name in changed})


def find_drift(backend: NftablesBackend, request: SyncRequest) -> Difference | None:
    """What the drift check finds, or else the comparison that it asks for after an external change."""
    before = backend.external_changes
    found = backend.find_drift()
    if found is not None or backend.external_changes == before:
        return found
    return next(iter(backend.prepare_comparison(request).differences()), None)


def wired_namespace(*commands: str) -> Namespace:
    """Return a namespace with eth0 at 192.168.10.11 on a wire without another end, after further commands of `ip`."""
    namespace = new_namespace()
    for command in (
        "link add eth0 type veth peer name wire",
        "link set eth0 up",
        "link set wire up",
        "address add 192.168.10.11/24 dev eth0",
        *commands,
    ):
        namespace.run(["ip", *command.split()])
    return namespace
