"""How many connections each endpoint of some service ports has open, read from the kernel's table of tracked flows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pointsman.kernel.conntrack import ConntrackTable
from pointsman.model.addresses import Family
from pointsman.model.endpoint import Identity
from pointsman.model.service import ServicePort, ServicePortName
from pointsman.model.tracker import PortState
from pointsman.sync.stale_flows import FrontendKey, build_flow_queries

DEADLINE: Final = 10.0
"""Seconds a reading may take; one that takes longer counts for nothing."""

Counts = Mapping[ServicePortName, Mapping[Identity, int]]


def _frontends(port: ServicePort) -> Iterable[FrontendKey]:
    number = port.protocol.value
    for address in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips):
        yield number, address, port.port
    if port.node_port:
        yield number, b"", port.node_port


def open_connections(
    family: Family,
    states: Mapping[ServicePortName, PortState],
    *,
    open_table: Callable[[Family], ConntrackTable] = ConntrackTable,
    monotonic: Callable[[], float] = time.monotonic,
) -> Counts:
    """By service port and endpoint; raises KernelError when the table cannot be read in time.

    Connections that one side has begun to close do not count: the kernel remembers them for minutes.
    """
    owners = {key: name for name, state in states.items() for key in _frontends(state.port)}
    endpoints = {name: {one.identity for one in state.endpoints} for name, state in states.items()}
    counts: dict[ServicePortName, Counter[Identity]] = {name: Counter() for name in states}
    ends = monotonic() + DEADLINE

    with open_table(family) as table:
        for query in build_flow_queries(owners):
            for (to, port, by, by_port), count in table.opened(query, lambda: monotonic() > ends).items():
                name = owners.get((query.protocol, to, port)) or owners.get((query.protocol, b"", port))
                if name is not None and (by, by_port) in endpoints[name]:
                    counts[name][by, by_port] += count
    return counts
