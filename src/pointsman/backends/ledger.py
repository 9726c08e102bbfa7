"""The ledger: rows that service ports request, each with its owner. Pure.

A row is one kernel object, named by its kind and key. Service ports share rows: two ports of a Service need one address, two
Services may have the same local endpoint. The first service port that requests a row owns it and decides its value; the next one
takes over when the owner gives it up. An update returns the keys that it may have changed, so that only those are compared with
what the kernel holds.

A row is as large as the unit in which the kernel is changed: a virtual server with all its real servers is one row, because
a row for every real server would double the memory of a large cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pointsman.model.service import ServicePortName

Keys = Mapping[str, set[Any]]
"""Keys of rows by their kind."""


class Row(NamedTuple):
    """One kernel object as one service port requests it."""

    owner: ServicePortName
    kind: str
    key: Any
    value: Any = None
    """None where the key is enough."""


class Ledger:
    """The rows of all service ports."""

    def __init__(self, rows: Mapping[ServicePortName, Sequence[Row]] = {}) -> None:
        self._rows: defaultdict[str, dict[Any, Row]] = defaultdict(dict)
        self._by_owner: dict[ServicePortName, Sequence[Row]] = {}
        self._waiting: dict[tuple[str, Any], dict[ServicePortName, Row]] = {}
        """Rows of further service ports that request the same, in the order in which they came."""
        self.update(rows)

    def rows(self, kind: str) -> Mapping[Any, Row]:
        """Return the rows of one kind by key, each from its owner."""
        return self._rows[kind]

    def owners(self, kind: str, key: object) -> list[ServicePortName]:
        """Return every service port that requests a row, its owner first."""
        row = self._rows[kind].get(key)
        return [] if row is None else [row.owner, *self._waiting.get((kind, key), ())]

    def update(self, changes: Mapping[ServicePortName, Sequence[Row]]) -> Keys:
        """Replace the rows of some service ports, none for those that are gone; return the keys this may concern."""
        touched: defaultdict[str, set[Any]] = defaultdict(set)
        for name, rows in changes.items():
            before = self._by_owner.pop(name, ())
            if rows:
                self._by_owner[name] = rows
            if rows == before:
                continue
            for row in (*before, *rows):
                touched[row.kind].add(row.key)
            kept = {(row.kind, row.key) for row in rows}
            for row in rows:
                self._add(row)
            for kind, key in {(row.kind, row.key) for row in before} - kept:
                self._remove(name, kind, key)
        return touched

    def _add(self, row: Row) -> None:
        rows = self._rows[row.kind]
        if rows.setdefault(row.key, row).owner == row.owner:
            rows[row.key] = row
        else:
            self._waiting.setdefault((row.kind, row.key), {})[row.owner] = row

    def _remove(self, name: ServicePortName, kind: str, key: object) -> None:
        rows, waiting = self._rows[kind], self._waiting.get((kind, key), {})
        if rows[key].owner != name:
            del waiting[name]
        elif waiting:
            rows[key] = waiting.pop(next(iter(waiting)))
        else:
            del rows[key]
        if not waiting:
            self._waiting.pop((kind, key), None)
