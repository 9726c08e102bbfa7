"""A conntrack table in memory, and a cleaner that works on it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Container, Iterable
from typing import Self

from tests.unit.sync.flow_making import OWN_ADDRESSES

from pointsman.kernel.conntrack import DeadlinePassed, FlowsLeft
from pointsman.kernel.tracked_flows import Flow, FlowQuery, Wanted
from pointsman.model.addresses import Family
from pointsman.obs.registry import Metrics
from pointsman.sync.flow_cleaner import StaleFlowCleaner


class FakeTable:
    """An in-memory conntrack table with the contract of the real one."""

    def __init__(self, flows: Iterable[Flow], *, selects: bool = True) -> None:
        self.entries = list(flows)
        self.selects = selects
        self.queries: list[FlowQuery] = []
        self.failure: Exception | None = None
        self.undeletable: Container[Flow] = ()
        self.after_dump: Callable[[], object] = lambda: None

    def open(self, _family: Family) -> FakeTable:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.after_dump = lambda: None

    def list_flows(self, query: FlowQuery, wanted: Wanted, expired: Callable[[], bool]) -> list[Flow]:
        self.queries.append(query)
        if self.failure:
            raise self.failure
        found = [
            entry
            for entry in self.entries
            if query.matches(entry.protocol, entry.destination, entry.destination_port)
            and not (query.unreplied and entry.replied)
            and wanted(entry.destination, entry.destination_port, entry.reply_source, entry.reply_source_port)
        ]
        if expired():
            raise DeadlinePassed("too slow")
        self.after_dump()
        return found

    def filter_unreplied(self, flows: list[Flow]) -> list[Flow]:
        return [entry for entry in flows if entry in self.entries]

    def delete(self, flows: list[Flow], expired: Callable[[], bool]) -> int:
        if expired():
            raise DeadlinePassed("too slow")
        going = [entry for entry in flows if entry not in self.undeletable]
        self.entries = [entry for entry in self.entries if entry not in going]
        if len(going) < len(flows):
            raise FlowsLeft("Device or resource busy", errno.EBUSY, len(going))
        return len(flows)


def cleaner(table: FakeTable, metrics: Metrics | None = None, **options: object) -> StaleFlowCleaner:
    made = StaleFlowCleaner(
        Family.IPV4,
        metrics or Metrics("nftables"),
        open_table=table.open,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )
    made.set_addresses(OWN_ADDRESSES)
    return made
