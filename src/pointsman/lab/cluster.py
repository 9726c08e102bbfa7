"""Cluster: the namespaces, links and routes drawn in hosts.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from pointsman.lab.echo import EchoServers
from pointsman.lab.hosts import BRIDGE, GATEWAY, HOSTS, LAN, NODES, OUTSIDE, POD_RANGES, Host
from pointsman.lab.netns import Namespace

_EVERY_HOST = {
    # Addresses are unique here: duplicate detection would only delay the start.
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/all/disable_ipv6": "0",
    "net/ipv6/conf/default/disable_ipv6": "0",
    "net/ipv6/conf/all/accept_ra": "0",
    "net/ipv6/conf/default/accept_ra": "0",
    # All LAN hosts use n1 as gateway on purpose; ignore redirects to shorter routes.
    "net/ipv4/conf/all/accept_redirects": "0",
    "net/ipv4/conf/default/accept_redirects": "0",
    "net/ipv6/conf/all/accept_redirects": "0",
    "net/ipv6/conf/default/accept_redirects": "0",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    # Many probes expect ICMP errors: do not rate-limit them.
    "net/ipv4/icmp_ratelimit": "0",
    "net/ipv6/icmp/ratelimit": "0",
    "net/ipv4/icmp_msgs_per_sec": "1000000",
    "net/ipv4/icmp_msgs_burst": "10000",
}
_ROUTER = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
    "net/bridge/bridge-nf-call-iptables": "0",
    "net/bridge/bridge-nf-call-ip6tables": "0",
}


class Cluster:
    """The hosts of hosts.py or some of them, with an echo server on every port passed to `serve`."""

    def __init__(self, hosts: Collection[str] = HOSTS.keys()) -> None:
        self._hosts = [host for name, host in HOSTS.items() if name in hosts]
        self._lan = Namespace()
        self._namespaces = {host.name: Namespace() for host in self._hosts}
        self.servers = EchoServers()
        try:
            self._connect_hosts()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, host: str) -> Namespace:
        return self._namespaces[host]

    @property
    def namespaces(self) -> Mapping[str, Namespace]:
        return self._namespaces

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the servers and release the namespaces; stop processes started inside them first."""
        self.servers.close()
        for namespace in (self._lan, *self._namespaces.values()):
            namespace.close()

    def serve(self, host: str, *ports: int, name: str = "") -> None:
        """Answer on TCP and UDP `ports` of `host` with its name and the source address of the client."""
        with self._namespaces[host].entered():
            for port in ports:
                self.servers.listen(name or host, (HOSTS[host].ipv4, HOSTS[host].ipv6), port)

    def _connect_hosts(self) -> None:
        self._lan.write_sysctls(_EVERY_HOST)
        for name, namespace in self._namespaces.items():
            namespace.write_sysctls(_EVERY_HOST | (_ROUTER if name in NODES else {}))
        self._lan.run(
            ("ip", "-batch", "-"),
            _build_bridge_commands("lan0", {f: f"{a}/{_find_lan_prefix(f)}" for f, a in GATEWAY.items()})
            + self._build_port_commands(LAN, "lan0")
            + "route add blackhole 0.0.0.0/0\nroute add blackhole ::/0\n",
        )
        for node in filter(self._namespaces.__contains__, NODES):
            self._namespaces[node].run(
                ("ip", "-batch", "-"),
                _build_bridge_commands("cni0", {4: f"{BRIDGE[node][4]}/32", 6: f"{BRIDGE[node][6]}/128"})
                + "".join(f"route add {pod_range} dev cni0\n" for pod_range in POD_RANGES[node])
                + self._build_port_commands(node, "cni0"),
            )
        for host in self._hosts:
            self._namespaces[host.name].run(("ip", "-batch", "-"), _build_host_commands(host))
        for host in self._hosts:
            self._namespaces[host.name].wait_for_address(host.ipv6)

    def _build_port_commands(self, network: str, bridge: str) -> str:
        lines = []
        for host in self._hosts:
            if host.network == network:
                peer = self._namespaces[host.name].path
                lines.append(f"link add {host.name} type veth peer name eth0 netns {peer}")
                lines.append(f"link set {host.name} master {bridge} up")
        return "\n".join(lines) + "\n"


def _find_lan_prefix(family: int) -> int:
    return 24 if family == 4 else 64


def _build_bridge_commands(name: str, addresses: Mapping[int, str]) -> str:
    lines = [f"link add {name} type bridge mcast_snooping 0", "link set lo up"]
    lines += [
        f"addr add {address} dev {name}{' nodad' if family == 6 else ''}"
        for family, address in addresses.items()
    ]
    lines.append(f"link set {name} up")
    return "\n".join(lines) + "\n"


def _build_host_commands(host: Host) -> str:
    lines = ["link set eth0 up"]
    if host.name not in NODES:
        lines.append("link set lo up")
    for family in (4, 6):
        nodad = "" if family == 4 else " nodad"
        address = host.address(family)
        is_pod = host.name.startswith("pod")
        prefix = (32 if family == 4 else 128) if is_pod else _find_lan_prefix(family)
        lines.append(f"addr add {address}/{prefix} dev eth0{nodad}")
        lines += [f"route add {route}" for route in _build_routes(host, family)]
    return "\n".join(lines) + "\n"


def _build_routes(host: Host, family: int) -> list[str]:
    """Return the routes of one host. Every pod has a /32 address, so traffic between pods passes through its node."""
    index = 0 if family == 4 else 1
    n1, n2 = HOSTS["n1"].address(family), HOSTS["n2"].address(family)
    if host.name == "n1":
        outside_pod = HOSTS["pod6"].address(family)
        return [
            f"{POD_RANGES['n2'][index]} via {n2}",
            f"{outside_pod} dev eth0",
            f"default via {GATEWAY[family]}",
        ]
    if host.name == "n2":
        outside = [HOSTS[name].address(family) for name in OUTSIDE]
        return [
            f"{POD_RANGES['n1'][index]} via {n1}",
            *(f"{address} via {n1}" for address in outside),
            f"default via {n1}",
        ]
    if host.network == LAN:
        return [f"default via {n1} dev eth0 onlink"]
    return [f"default via {BRIDGE[host.network][family]} dev eth0 onlink"]
