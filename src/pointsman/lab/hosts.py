"""Hosts of the lab: names, addresses, and how each is attached. Plain data.

```
  client   client2  pod6            external clients, and a pod of a third node, on the same LAN
     |       |       |
  ===+=======+=======+=====+=== lan 172.30.0.0/24, fd00:30::/64 =====
                     |                   |
                     n1                  n2        two nodes; the proxy under test runs on n1
                 cni0 10.244.1.1     cni0 10.244.2.1
                 |    |    |             |    |
               pod1 pod2 pod3          pod4 pod5
```

All other hosts use n1 as gateway, so packets to service addresses arrive there and replies return through it.
"""

from __future__ import annotations

import msgspec

LAN = "lan"


class Host(msgspec.Struct, frozen=True):
    """A namespace with one uplink."""

    name: str
    network: str
    """Where its only interface is plugged in: the LAN, or the bridge of a node."""
    ipv4: str
    ipv6: str
    node: str = ""
    """The Kubernetes node a pod belongs to."""

    def address(self, family: int) -> str:
        return self.ipv4 if family == 4 else self.ipv6


GATEWAY = {4: "172.30.0.1", 6: "fd00:30::1"}
"""On the LAN; drops every packet, as an unknown network would."""
BRIDGE = {"n1": {4: "10.244.1.1", 6: "fd00:10:244:1::1"}, "n2": {4: "10.244.2.1", 6: "fd00:10:244:2::1"}}
POD_RANGES = {
    "n1": ("10.244.1.0/24", "fd00:10:244:1::/64"),
    "n2": ("10.244.2.0/24", "fd00:10:244:2::/64"),
    "n3": ("10.244.3.0/24", "fd00:10:244:3::/64"),
}
CLUSTER_RANGES = ("10.244.0.0/16", "fd00:10:244::/48")
SERVICE_RANGES = ("10.96.0.0/12", "fd00:10:96::/112")
ZONES = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}


def _build_pod(number: int, node: int, network: str) -> Host:
    return Host(
        f"pod{number}",
        network,
        f"10.244.{node}.{10 + number}",
        f"fd00:10:244:{node}::{10 + number}",
        f"n{node}",
    )


HOSTS = {
    host.name: host
    for host in (
        Host("n1", LAN, "172.30.0.10", "fd00:30::10", "n1"),
        Host("n2", LAN, "172.30.0.20", "fd00:30::20", "n2"),
        _build_pod(1, 1, "n1"),
        _build_pod(2, 1, "n1"),
        _build_pod(3, 1, "n1"),
        _build_pod(4, 2, "n2"),
        _build_pod(5, 2, "n2"),
        _build_pod(6, 3, LAN),
        Host("client", LAN, "172.30.0.100", "fd00:30::100"),
        Host("client2", LAN, "172.30.0.200", "fd00:30::200"),
    )
}
NODES = ("n1", "n2")
OUTSIDE = ("client", "client2", "pod6")
