"""Connections per service port and endpoint, from the counters on map elements.

The kernel forgets a counter with its element (an endpoint that moves to another slot, a reload), so totals are kept
here and grow by differences; a counter that went backwards has started anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from pointsman.backends.nftables import schema
from pointsman.backends.nftables.contents import Contents, slot_words
from pointsman.backends.nftables.reader import Reader
from pointsman.model.addresses import host_port_text
from pointsman.model.service import ServicePortName

_FRONTENDS = (schema.SERVICE_IPS, schema.SERVICE_NODEPORTS)
_ENDPOINTS = (
    schema.ENDPOINTS,
    schema.LOCAL_ENDPOINTS,
    schema.NODEPORT_ENDPOINTS,
    schema.LOCAL_NODEPORT_ENDPOINTS,
)

_Key = tuple[str, bytes, bytes]


class ConnectionCounts(msgspec.Struct, frozen=True):
    """Totals since the first sync of this process. Endpoints of affinity services are not counted singly."""

    services: dict[ServicePortName, int]
    endpoints: dict[tuple[ServicePortName, str], int]


class ConnectionTotals:
    """Running totals over counters that come and go."""

    def __init__(self) -> None:
        self._last: dict[_Key, int] = {}
        self._services: Counter[ServicePortName] = Counter()
        self._endpoints: Counter[tuple[ServicePortName, str]] = Counter()

    def counts(self) -> ConnectionCounts:
        return ConnectionCounts(dict(self._services), dict(self._endpoints))

    def restarted(self) -> None:
        """Everything was loaded anew: all counters in the kernel begin at zero."""
        self._last = {}

    def add(self, contents: Contents, reader: Reader) -> None:
        """Read all counters and add what they grew by; service ports that are gone are forgotten."""
        read = {name: reader.elements(contents.sets[name]) for name in (*_FRONTENDS, *_ENDPOINTS)}
        current: dict[_Key, int] = {}
        for service, key, endpoint in _counted(contents):
            where, element_key, data = key
            found = read[where].get(element_key)
            if found is None or found.data != data:
                continue
            current[key] = found.packets
            before = self._last.get(key, 0)
            grown = found.packets - before if found.packets >= before else found.packets
            if endpoint:
                self._endpoints[(service, endpoint)] += grown
            else:
                self._services[service] += grown
        self._last = current
        self._forget(contents)

    def _forget(self, contents: Contents) -> None:
        for service in [name for name in self._services if name not in contents.fragments]:
            del self._services[service]
        for gone in [key for key in self._endpoints if key[0] not in contents.fragments]:
            del self._endpoints[gone]


def _counted(contents: Contents) -> Iterator[tuple[ServicePortName, _Key, str]]:
    """Every counted element: its service port, its key and value, its endpoint if it is one."""
    for name, fragment in contents.fragments.items():
        for element in fragment.elements:
            if element.where in _FRONTENDS:
                yield name, (element.where, element.key, b""), ""
        for where, prefix, slots in fragment.pools:
            numbers = slot_words(len(slots))
            for index, data in enumerate(slots):
                endpoint = host_port_text(data[:-4], int.from_bytes(data[-4:-2], "big"))
                yield name, (where, prefix + numbers[index], data), endpoint
