"""The behaviour of a Service proxy as data: services, configurations, and what clients must see with them.

Modes: nftables, iptables and, where it was measured on the reference implementation, ipvs. A case whose
expectation is a mapping says nothing about modes it leaves out.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tests.e2e.behaviour import NOT_PERMITTED, REFUSED, TIMED_OUT, Case, Expectation, kept, masqueraded

from pointsman.lab.objects import Backend, LabService, backends

ALL = ("pod1", "pod2", "pod4")
LOCAL = ("pod1", "pod2")
FRONTENDS = ("cluster", "nodeport", "lb", "external")
OUTER = FRONTENDS[1:]
SERVING = {"ready": False, "serving": True, "terminating": True}


class Setting(msgspec.Struct, frozen=True):
    """A proxy configuration and everything that is checked under it."""

    name: str
    cases: tuple[Case, ...]
    modes: tuple[str, ...] = ("nftables", "iptables")
    configuration: dict[str, Any] = {}


def _balancer(name: str, number: int, *hosts: str, **more: object) -> LabService:
    fields = {"type": "LoadBalancer", "external": True, **more}
    return LabService(name, number, backends(*hosts), **fields)  # type: ignore[arg-type]


def _with(name: str, number: int, *members: Backend, **more: object) -> LabService:
    return LabService(name, number, members, **more)  # type: ignore[arg-type]


SERVICES = {
    service.name: service
    for service in (
        _balancer("web", 1, *ALL, protocols=("TCP", "UDP")),
        _balancer("local", 2, *ALL, external_policy="Local", protocols=("TCP", "UDP")),
        _balancer("local-elsewhere", 3, "pod4", external_policy="Local"),
        _balancer("local-nowhere", 4, external_policy="Local"),
        LabService("inside-local", 5, backends("pod1", "pod4"), internal_policy="Local"),
        LabService("inside-elsewhere", 6, backends("pod4"), internal_policy="Local"),
        LabService("inside-nowhere", 7, internal_policy="Local"),
        _balancer("none", 8, protocols=("TCP", "UDP", "SCTP")),
        _balancer(
            *("ranges", 9, "pod1", "pod4"),
            source_ranges=(
                *("172.30.0.100/32", "  172.30.0.10/32 "),
                *("fd00:30::100/128", " fd00:30::10/128  "),
            ),
        ),
        _balancer("ranges-none", 10, source_ranges=("172.30.0.100/32", "fd00:30::100/128")),
        _balancer("proxy-mode", 11, "pod1", ip_mode="Proxy", external=False),
        _balancer("on-node", 12, "n1"),
        _with("draining-some", 13, Backend("pod1"), Backend("pod2", SERVING)),
        _with("draining-all", 14, Backend("pod1", SERVING), Backend("pod4", SERVING)),
        _with("draining-dead", 15, Backend("pod1", {"ready": False, "serving": False, "terminating": True})),
        _with(
            *("draining-local", 16, Backend("pod1", SERVING), Backend("pod4")),
            type="LoadBalancer",
            external=True,
            external_policy="Local",
        ),
        _with("ready-terminating", 17, Backend("pod1", {"ready": True, "terminating": True})),
        _with("serving-unsaid", 18, Backend("pod1", {"ready": False, "terminating": True})),
        _with("no-conditions", 19, Backend("pod1", None), Backend("pod4", {})),
        _with("not-ready", 20, Backend("pod1", {"ready": False, "serving": True}), Backend("pod4")),
        _with(
            *("zoned", 21, Backend("pod1", zones=("zone-a",)), Backend("pod4", zones=("zone-b",))),
            type="LoadBalancer",
        ),
        _with("zoned-partly", 22, Backend("pod1", zones=("zone-a",)), Backend("pod4")),
        _with(
            *("node-hints", 23),
            Backend("pod1", zones=("zone-a",), nodes=("n2",)),
            Backend("pod2", zones=("zone-a",), nodes=("n1",)),
            Backend("pod4", zones=("zone-b",), nodes=("n2",)),
        ),
        _with(
            *("zoned-local", 24, Backend("pod1", zones=("zone-b",)), Backend("pod4", zones=("zone-b",))),
            type="LoadBalancer",
            external_policy="Local",
        ),
        _with(
            *("nameless", 25, Backend("pod1", named_node=False)),
            type="LoadBalancer",
            external_policy="Local",
        ),
        _balancer("sctp", 26, *ALL, protocols=("SCTP",)),
        _with("two-targets", 27, Backend("pod1"), Backend("pod4", port=8081)),
        _balancer("two-ports", 28, "pod1", "pod4", ports=(80, 443)),
        _balancer("both-local", 29, *ALL, external_policy="Local", internal_policy="Local"),
        _balancer("both-elsewhere", 30, "pod4", external_policy="Local", internal_policy="Local"),
    )
}


def _case(line: str, service: str, host: str, to: str, expect: Expectation, **more: object) -> Case:
    return Case(f"{line}:{to}-from-{host}", service, host, to, expect, **more)  # type: ignore[arg-type]


def _dropped_but_by_ipvs(*remote: str) -> Expectation:
    """Policy Local without a local endpoint: ipvs mode uses the remote ones, and does not masquerade."""
    return {"nftables": TIMED_OUT, "iptables": TIMED_OUT, "ipvs": kept(*remote)}


def _source_addresses() -> list[Case]:
    """Source address that a backend sees."""
    cases = []
    for protocol in ("TCP", "UDP"):
        line = f"source-{protocol.lower()}"
        cases += [
            _case(line, "web", host, "cluster", kept(*ALL), protocol=protocol)
            for host in ("pod1", "pod3", "pod6")
        ]
        cases += [
            _case(line, "web", host, "cluster", masqueraded(*ALL), protocol=protocol)
            for host in ("n1", "client")
        ]
        for to in OUTER:
            cases += [
                _case(line, "web", host, to, masqueraded(*ALL), protocol=protocol)
                for host in ("pod1", "pod3", "pod6", "n1", "client")
            ]
            cases.append(
                _case(f"local-{line}", "local", "client", to, kept(*LOCAL), protocol=protocol),
            )
            for host in ("pod1", "pod3", "pod6"):
                expect = {m: kept(*ALL) for m in ("nftables", "iptables")} | {"ipvs": kept(*LOCAL)}
                cases.append(_case(f"local-{line}", "local", host, to, expect, protocol=protocol))
            shortcut = {m: masqueraded(*ALL) for m in ("nftables", "iptables")}
            cases.append(_case(f"local-{line}", "local", "n1", to, shortcut, protocol=protocol))
    cases += [
        _case("local-source-tcp", "local", "client", "cluster", masqueraded(*ALL)),
        _case("local-source-tcp", "local", "pod3", "cluster", kept(*ALL)),
    ]
    for to in FRONTENDS:
        for host in ("pod3", "client", "n1"):
            cases.append(_case("endpoint-on-node", "on-node", host, to, kept("n1")))
    return cases


def _nothing_there() -> list[Case]:
    """No endpoints, wrong ports, denied clients."""
    cases = []
    for protocol in ("TCP", "UDP", "SCTP"):
        for to in FRONTENDS:
            cases += [
                _case(f"no-endpoints-{protocol.lower()}", "none", host, to, REFUSED, protocol=protocol)
                for host in ("pod3", "client")
            ]
        for to in ("cluster", "nodeport"):
            cases.append(
                _case(f"no-endpoints-{protocol.lower()}", "none", "n1", to, REFUSED, protocol=protocol)
            )
    for to in ("lb", "external"):
        expect = {"nftables": REFUSED, "iptables": TIMED_OUT, "ipvs": REFUSED}
        cases.append(_case("no-endpoints-tcp", "none", "n1", to, expect))
    for to in OUTER:
        cases += [
            _case("local-elsewhere", "local-elsewhere", "client", to, _dropped_but_by_ipvs("pod4")),
            _case("local-elsewhere", "local-elsewhere", "pod3", to, kept("pod4")),
            _case("local-elsewhere", "local-elsewhere", "pod6", to, kept("pod4")),
            _case(
                *("local-elsewhere", "local-elsewhere", "n1", to),
                {mode: masqueraded("pod4") for mode in ("nftables", "iptables")},
            ),
            _case("local-nowhere", "local-nowhere", "client", to, REFUSED),
            _case("local-nowhere", "local-nowhere", "pod3", to, REFUSED),
        ]
    cases.append(_case("local-elsewhere", "local-elsewhere", "client", "cluster", masqueraded("pod4")))
    dropped = {"nftables": TIMED_OUT, "iptables": TIMED_OUT, "ipvs": REFUSED}
    for host in ("pod3", "n1", "client"):
        keep = kept if host == "pod3" else masqueraded
        cases += [
            _case("internal-local", "inside-local", host, "cluster", keep("pod1")),
            _case("internal-local-elsewhere", "inside-elsewhere", host, "cluster", dropped),
            _case("internal-local-nowhere", "inside-nowhere", host, "cluster", REFUSED),
            _case(
                *("both-local", "both-local", host, "cluster"),
                {mode: keep(*LOCAL) for mode in ("nftables", "iptables")},
            ),
        ]
    two_modes = {"nftables": TIMED_OUT, "iptables": TIMED_OUT}
    cases += [_case("both-elsewhere", "both-elsewhere", h, "cluster", two_modes) for h in ("pod3", "n1")]
    wrong = {"nftables": REFUSED, "iptables": TIMED_OUT, "ipvs": REFUSED}
    beyond = {"nftables": TIMED_OUT, "iptables": TIMED_OUT, "ipvs": REFUSED}
    for host in ("pod3", "n1", "client"):
        cases += [
            _case("wrong-port-tcp", "web", host, "cluster", wrong, port=81),
            _case("wrong-port-udp", "web", host, "cluster", wrong, port=81, protocol="UDP"),
            _case("wrong-protocol", "zoned", host, "cluster", wrong, protocol="UDP"),
            _case("ping", "web", host, "cluster", wrong, protocol="ICMP"),
            _case("wrong-port", "web", host, "lb", beyond, port=81),
            _case("wrong-port", "web", host, "external", beyond, port=81),
            _case("unallocated-tcp", "", host, "unallocated", TIMED_OUT),
        ]
    cases += [
        _case("unallocated-udp", "", host, "unallocated", TIMED_OUT, protocol="UDP")
        for host in ("pod3", "client")
    ]
    cases.append(
        _case(
            *("unallocated-udp", "", "n1", "unallocated", {"nftables": NOT_PERMITTED, "iptables": TIMED_OUT}),
            protocol="UDP",
        )
    )
    return cases


def _source_ranges() -> list[Case]:
    both = ("pod1", "pod4")
    cases = [
        _case("ranges-allowed", "ranges", "client", "lb", masqueraded(*both)),
        _case("ranges-node-allowed", "ranges", "n1", "lb", masqueraded(*both)),
        _case("ranges-denied", "ranges", "client2", "lb", TIMED_OUT),
        _case("ranges-denied", "ranges", "pod3", "lb", TIMED_OUT),
        _case("ranges-none-allowed", "ranges-none", "client", "lb", REFUSED),
        _case(
            "ranges-none-denied", "ranges-none", "client2", "lb", {"nftables": TIMED_OUT, "iptables": REFUSED}
        ),
        _case("ranges-guard-lb-only", "ranges", "pod3", "cluster", kept(*both)),
    ]
    cases += [
        _case("ranges-guard-lb-only", "ranges", "client2", to, masqueraded(*both))
        for to in ("cluster", "nodeport", "external")
    ]
    cases += [
        _case("ip-mode-proxy", "proxy-mode", host, "lb", TIMED_OUT) for host in ("client", "pod3", "n1")
    ]
    return cases


def _endpoint_states() -> list[Case]:
    return [
        _case("ready-before-draining", "draining-some", "pod3", "cluster", kept("pod1")),
        _case("draining-fallback", "draining-all", "pod3", "cluster", kept("pod1", "pod4")),
        _case("draining-not-serving", "draining-dead", "pod3", "cluster", REFUSED),
        _case("draining-local-fallback", "draining-local", "client", "lb", kept("pod1")),
        _case("draining-local-fallback", "draining-local", "client", "nodeport", kept("pod1")),
        _case("draining-local-fallback", "draining-local", "client", "cluster", masqueraded("pod4")),
        _case("ready-and-terminating", "ready-terminating", "pod3", "cluster", kept("pod1")),
        _case("serving-unsaid", "serving-unsaid", "pod3", "cluster", kept("pod1")),
        _case("no-conditions", "no-conditions", "pod3", "cluster", kept("pod1", "pod4")),
        _case("not-ready", "not-ready", "pod3", "cluster", kept("pod4")),
        _case("zone-hints", "zoned", "pod3", "cluster", kept("pod1")),
        _case("zone-hints", "zoned", "client", "nodeport", masqueraded("pod1")),
        _case("zone-hints-incomplete", "zoned-partly", "pod3", "cluster", kept("pod1", "pod4")),
        _case("node-hints", "node-hints", "pod3", "cluster", kept("pod2")),
        _case("hints-and-local-policy", "zoned-local", "client", "lb", kept("pod1")),
        _case("endpoint-without-node", "nameless", "client", "lb", _dropped_but_by_ipvs("pod1")),
        _case("endpoint-without-node", "nameless", "pod3", "cluster", kept("pod1")),
        _case("slices-with-other-target-port", "two-targets", "pod3", "cluster", kept("pod1", "pod4")),
        *(
            _case(f"port-{port}", "two-ports", "client", to, masqueraded("pod1", "pod4"), port=port)
            for port in (80, 443)
            for to in FRONTENDS
        ),
        *(
            _case(
                "sctp", "sctp", "pod3", to, (kept if to == "cluster" else masqueraded)(*ALL), protocol="SCTP"
            )
            for to in FRONTENDS
        ),
        *(
            _case("sctp", "sctp", host, to, masqueraded(*ALL), protocol="SCTP")
            for to in FRONTENDS
            for host in ("n1", "client")
        ),
    ]


def _node_port_addresses() -> list[Case]:
    """Where node ports answer by default."""
    everywhere = {"nftables": REFUSED, "iptables": masqueraded(*ALL)}
    loopback = {"nftables": REFUSED, "iptables": masqueraded(*ALL), "ipvs": REFUSED}
    cases = [
        _case("node-port-other-address", "web", host, "nodeport@bridge", everywhere)
        for host in ("pod3", "client", "n1")
    ]
    for protocol in ("TCP", "UDP"):
        line = f"node-port-loopback-{protocol.lower()}"
        cases += [
            _case(line, "web", "n1", "nodeport@loopback", loopback, families=(4,), protocol=protocol),
            _case(f"{line}-v6", "web", "n1", "nodeport@loopback", REFUSED, families=(6,), protocol=protocol),
        ]
    return cases


DEFAULT = Setting(
    "default",
    (
        *_source_addresses(),
        *_nothing_there(),
        *_source_ranges(),
        *_endpoint_states(),
        *_node_port_addresses(),
    ),
    modes=("nftables", "iptables", "ipvs"),
)

MASQUERADE_ALL = Setting(
    "masquerade-all",
    (
        *(
            _case("masquerade-all", "web", host, "cluster", masqueraded(*ALL))
            for host in ("pod1", "pod3", "n1", "client")
        ),
        *(_case("masquerade-all-local", "local", "client", to, kept(*LOCAL)) for to in OUTER),
        *(_case("masquerade-all-local", "local", "pod3", to, kept(*ALL)) for to in OUTER),
    ),
    configuration={"iptables": {"masqueradeAll": True}, "nftables": {"masqueradeAll": True}},
)

NO_DETECTION = Setting(
    "no-detection",
    (
        *(_case("no-detection", "web", host, "cluster", kept(*ALL)) for host in ("pod1", "pod3", "client")),
        _case("no-detection", "web", "client", "nodeport", masqueraded(*ALL)),
        *(_case("no-detection-local", "local", "pod3", to, kept(*LOCAL)) for to in OUTER),
        *(_case("no-detection-local", "local", "client", to, kept(*LOCAL)) for to in OUTER),
        *(_case("no-detection-local", "local", "n1", to, masqueraded(*ALL)) for to in OUTER),
    ),
    configuration={"clusterCIDR": ""},
)


def _detector(name: str, **configuration: object) -> Setting:
    """Detectors that know this node's pods only: a pod of another node counts as outside."""
    cases = [
        *(_case(name, "web", host, "cluster", kept(*ALL)) for host in ("pod1", "pod3")),
        *(_case(name, "web", host, "cluster", masqueraded(*ALL)) for host in ("n1", "client", "pod6")),
        *(_case(f"{name}-local", "local", "pod3", to, kept(*ALL)) for to in OUTER),
        *(
            _case(f"{name}-local", "local", host, to, kept(*LOCAL))
            for to in OUTER
            for host in ("client", "pod6")
        ),
        *(_case(f"{name}-local", "local", "n1", to, masqueraded(*ALL)) for to in OUTER),
    ]
    return Setting(name, tuple(cases), configuration=configuration)


def _node_port_setting(name: str, modes: tuple[str, ...], cases: tuple[Case, ...], **more: object) -> Setting:
    return Setting(name, cases, modes, dict(more))


SETTINGS = (
    DEFAULT,
    MASQUERADE_ALL,
    NO_DETECTION,
    _detector("node-cidr", detectLocalMode="NodeCIDR"),
    _detector("bridge", detectLocalMode="BridgeInterface", detectLocal={"bridgeInterface": "cni0"}),
    _detector("prefix", detectLocalMode="InterfaceNamePrefix", detectLocal={"interfaceNamePrefix": "cni"}),
    _node_port_setting(
        "node-ports-everywhere",
        ("nftables",),
        (
            *(
                _case("everywhere", "web", host, to, masqueraded(*ALL))
                for host in ("pod3", "client", "n1")
                for to in ("nodeport", "nodeport@bridge")
            ),
            _case("everywhere-loopback", "web", "n1", "nodeport@loopback", REFUSED),
        ),
        nodePortAddresses=["0.0.0.0/0", "::/0"],
    ),
    _node_port_setting(
        "node-ports-ipv4-range",
        ("nftables", "iptables"),
        (
            _case("range", "web", "client", "nodeport", masqueraded(*ALL)),
            _case("range-excludes", "web", "client", "nodeport@bridge", REFUSED, families=(4,)),
            _case(
                "other-family-everywhere",
                "web",
                "client",
                "nodeport@bridge",
                masqueraded(*ALL),
                families=(6,),
            ),
            _case("range-excludes-loopback", "web", "n1", "nodeport@loopback", REFUSED),
        ),
        nodePortAddresses=["172.30.0.0/24"],
    ),
    _node_port_setting(
        "localhost-node-ports",
        ("nftables",),
        (
            _case("localhost", "web", "n1", "nodeport@loopback", masqueraded(*ALL)),
            _case("localhost-none", "none", "n1", "nodeport@loopback", REFUSED),
            _case("localhost-udp", "web", "n1", "nodeport@loopback", REFUSED, protocol="UDP"),
            _case("localhost-primary", "web", "client", "nodeport", masqueraded(*ALL)),
        ),
        nodePortAddresses=["primary", "localhost"],
        featureGates={"KubeProxyNFTablesLocalhostNodePorts": True},
    ),
    _node_port_setting(
        "no-localhost-node-ports",
        ("iptables",),
        (
            _case("localhost-off", "web", "n1", "nodeport@loopback", REFUSED),
            _case("localhost-off-others", "web", "client", "nodeport@bridge", masqueraded(*ALL)),
        ),
        iptables={"localhostNodePorts": False},
    ),
)
