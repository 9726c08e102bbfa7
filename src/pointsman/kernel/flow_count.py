"""Connections by frontend and endpoint, counted in the conntrack table: for least-connections, `top` and the status page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from functools import partial
from typing import Final, Generic, TypeVar

from pointsman.kernel.conntrack import ConntrackTable, DeadlinePassed
from pointsman.kernel.tracked_flows import FlowPath, FlowQuery, Sighting
from pointsman.model.addresses import Family
from pointsman.model.endpoint import Identity

MAX_EXACT_QUERIES: Final = 8
"""Up to this number of ports are queried one by one; beyond, listing all flows of the protocol is cheaper."""

FrontendKey = tuple[int, bytes, int]
"""Protocol number, destination address and port; the address is empty for a node port."""
Owner = TypeVar("Owner", bound=Hashable)


def build_flow_queries(
    frontends: Iterable[FrontendKey], *, unreplied: Container[int] = (), max_exact: int = MAX_EXACT_QUERIES
) -> list[FlowQuery]:
    """Return the queries for the flows to these frontends; only for unanswered ones of the protocols `unreplied`."""
    wanted: dict[int, dict[int, set[bytes]]] = {}
    for protocol, address, port in frontends:
        wanted.setdefault(protocol, {}).setdefault(port, set()).add(address)
    queries: list[FlowQuery] = []
    for protocol, by_port in wanted.items():
        only_unreplied = protocol in unreplied
        if len(by_port) > max_exact:
            queries.append(FlowQuery(protocol, unreplied=only_unreplied))
            continue
        for port, addresses in by_port.items():
            only_address = (min(addresses) or None) if len(addresses) == 1 else None
            queries.append(FlowQuery(protocol, only_address, port, only_unreplied))
    return queries


class FlowCount(Generic[Owner]):
    """Tracked flows by the owner of their frontend and by endpoint."""

    def __init__(
        self,
        owners: Mapping[FrontendKey, Owner],
        has_endpoint: Callable[[Owner, Identity], bool],
        *,
        max_flows: int = 0,
    ) -> None:
        """Flows to a node port count only if one of the owner's endpoints answers. `max_flows` are remembered one by one."""
        self.open: Counter[tuple[Owner, Identity]] = Counter()
        """Open connections."""
        self.flows: dict[int, tuple[Owner, Identity]] = {}
        """Flows in any state by key; those that the reading before lacks are new."""
        self.is_partial = False
        """There were more flows than could be read in time or remembered."""
        self._owners, self._has_endpoint, self._max_flows = owners, has_endpoint, max_flows
        self._places: dict[tuple[int, FlowPath], tuple[Owner, Identity] | None] = {}

    def read(
        self,
        family: Family,
        seconds: float,
        *,
        open_table: Callable[[Family], ConntrackTable] = ConntrackTable,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Add the flows of a family; raises KernelError."""
        deadline = monotonic() + seconds
        try:
            with open_table(family) as table:
                for query in build_flow_queries(self._owners):
                    table.visit_flows(
                        query, partial(self.add, query.protocol), lambda: monotonic() > deadline
                    )
        except DeadlinePassed:
            self.is_partial = True

    def add(self, protocol: int, sighting: Sighting) -> None:
        known = (protocol, sighting.path)
        if known not in self._places:
            self._places[known] = self._find_place(protocol, sighting.path)
        place = self._places[known]
        if place is None:
            return
        if sighting.is_open:
            self.open[place] += 1
        if len(self.flows) < self._max_flows:
            self.flows[sighting.key] = place
        elif self._max_flows:
            self.is_partial = True

    def _find_place(self, protocol: int, path: FlowPath) -> tuple[Owner, Identity] | None:
        endpoint = (path.reply_source, path.reply_source_port)
        owner = self._owners.get((protocol, path.destination, path.destination_port))
        if owner is None:
            owner = self._owners.get((protocol, b"", path.destination_port))
            if owner is None or not self._has_endpoint(owner, endpoint):
                return None
        return owner, endpoint
