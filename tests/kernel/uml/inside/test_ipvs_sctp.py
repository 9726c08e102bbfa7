"""Real SCTP associations through ipvs, where the kernel has SCTP."""

from __future__ import annotations

import msgspec
import pytest
from tests.e2e.associations import Association, associating, missing_sctp
from tests.kernel.uml.inside.world import IpvsWorld

from pointsman.kernel.iptables import Iptables
from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import BRIDGE, HOSTS
from pointsman.lab.objects import LabService, backends
from pointsman.model.addresses import Family

pytestmark = pytest.mark.skipif(bool(missing_sctp()), reason=missing_sctp())

SERVICE = LabService("signals", 1, backends("pod1", "pod4"), type="LoadBalancer", protocols=("SCTP",))
NODE_TOWARDS = {
    "pod1": {family: BRIDGE["n1"][family] for family in (4, 6)},
    "pod4": {family: HOSTS["n1"].address(family) for family in (4, 6)},
}


def test_associations_are_balanced_and_translated_and_end_with_their_endpoint(
    iptables: dict[Family, Iptables],
) -> None:
    """Only TCP endpoints drain in ipvs mode: the association is led to another endpoint, which knows nothing of it."""
    with Cluster() as cluster, associating(cluster, "pod1", "pod4"):
        world = IpvsWorld(cluster, iptables)
        world.apply([SERVICE])
        for family in (4, 6):
            for host, to in (
                ("pod3", "cluster"),
                ("client", "cluster"),
                ("client", "nodeport"),
                ("client", "lb"),
            ):
                seen = dict(_asked(world, host, to, family) for _ in range(4))
                own = {pod: HOSTS[host].address(family) for pod in NODE_TOWARDS}
                node = {pod: addresses[family] for pod, addresses in NODE_TOWARDS.items()}
                assert seen == (own if host == "pod3" else node), f"{host} to {to}, IPv{family}"
        with Association(cluster, world.probe("client", SERVICE, "lb", 4)) as association:
            server = association.ask("first").by
            other = "pod4" if server == "pod1" else "pod1"
            world.apply([msgspec.structs.replace(SERVICE, backends=backends(other))])
            with pytest.raises(ConnectionResetError):
                association.ask("second")
            assert {_asked(world, "client", "lb", 4)[0] for _ in range(4)} == {other}
        world.close()


def _asked(world: IpvsWorld, host: str, to: str, family: int) -> tuple[str, str]:
    """Who answered a new association, and the client's address as seen there."""
    with Association(world.cluster, world.probe(host, SERVICE, to, family)) as association:
        answer = association.ask("anybody?")
        assert answer.echoed == "anybody?"
        return answer.by, answer.seen
