"""Number of open connections of each endpoint, read from the conntrack table."""

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

COUNT_TIMEOUT_SECONDS: Final = 10.0
"""A reading that takes longer is discarded."""

Counts = Mapping[ServicePortName, Mapping[Identity, int]]


def _frontends(port: ServicePort) -> Iterable[FrontendKey]:
    number = port.protocol.value
    for address in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips):
        yield number, address, port.port
    if port.node_port:
        yield number, b"", port.node_port


def count_open_connections(
    family: Family,
    states: Mapping[ServicePortName, PortState],
    *,
    open_table: Callable[[Family], ConntrackTable] = ConntrackTable,
    monotonic: Callable[[], float] = time.monotonic,
) -> Counts:
    """Count open connections by service port and endpoint; raise KernelError when the table cannot be read in time.

    Connections that one side has begun to close are not counted: the kernel keeps them for minutes.
    """
    owners = {key: name for name, state in states.items() for key in _frontends(state.port)}
    endpoints = {name: {one.identity for one in state.endpoints} for name, state in states.items()}
    counts: dict[ServicePortName, Counter[Identity]] = {name: Counter() for name in states}
    deadline = monotonic() + COUNT_TIMEOUT_SECONDS

    with open_table(family) as table:
        for query in build_flow_queries(owners):
            for (to, port, by, by_port), count in table.opened(query, lambda: monotonic() > deadline).items():
                name = owners.get((query.protocol, to, port)) or owners.get((query.protocol, b"", port))
                if name is not None and (by, by_port) in endpoints[name]:
                    counts[name][by, by_port] += count
    return counts
