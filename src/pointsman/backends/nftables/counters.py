"""Connections per service port and endpoint, from the counters on map elements.

The kernel forgets a counter with its element (an endpoint that moves to another slot, a reload), so totals are kept
here and grow by differences; a counter that went backwards has started again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pointsman.backends.contract import Count, Traffic
from pointsman.backends.nftables import schema
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.expressions import read_rule_counter
from pointsman.backends.nftables.fields import SLOT_LENGTH, find_traits
from pointsman.backends.nftables.reader import KernelElement, Reader
from pointsman.backends.nftables.schema import Data, SetSpec
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.model.addresses import Family, host_port_text
from pointsman.model.service import ServicePortName

_Key = tuple[str, bytes, bytes]


class ConnectionTotals:
    """Running totals over counters that come and go."""

    def __init__(self) -> None:
        self._last: dict[_Key, int] = {}
        self._services: Counter[ServicePortName] = Counter()
        self._endpoints: Counter[tuple[ServicePortName, str]] = Counter()

    def get(self) -> Traffic:
        """Return the totals since the first sync of this process."""
        return Traffic(dict(self._services), dict(self._endpoints))

    def reset_counters(self) -> None:
        """Start again after a full load: all counters in the kernel begin at zero."""
        self._last = {}

    def add(self, contents: Contents, reader: Reader) -> None:
        """Read all counters and add what they grew by; what is gone is forgotten, so churn does not pile up."""
        read = {name: reader.read_elements(contents.sets[name]) for name in schema.COUNTED}
        current: dict[_Key, int] = {}
        alive: set[tuple[ServicePortName, str]] = set()
        for service, key, endpoint in _find_counted(contents):
            alive.add((service, endpoint))
            where, element_key, data = key
            found = read[where].get(element_key)
            if found is not None and found.data == data:
                self._add_growth(current, service, key, endpoint, found.packets)
        if contents.with_chains:
            rules = reader.read_rules()
            for service in contents.with_chains:
                for chain, endpoint in contents.fragments[service].endpoint_chains:
                    alive.add((service, endpoint))
                    packets = max(map(read_rule_counter, rules.get(chain, [b""])))
                    self._add_growth(current, service, (chain, b"", b""), endpoint, packets)
        self._last = current
        self._services = Counter(
            {name: n for name, n in self._services.items() if name in contents.fragments}
        )
        self._endpoints = Counter({key: n for key, n in self._endpoints.items() if key in alive})

    def _add_growth(
        self, current: dict[_Key, int], service: ServicePortName, key: _Key, endpoint: str, packets: int
    ) -> None:
        current[key] = packets
        before = self._last.get(key, 0)
        grown = packets - before if packets >= before else packets
        if endpoint:
            self._endpoints[(service, endpoint)] += grown
        else:
            self._services[service] += grown


def _find_counted(contents: Contents) -> Iterator[tuple[ServicePortName, _Key, str]]:
    """Yield every counted element: its service port, its key and value, its endpoint if it is one."""
    for name, fragment in contents.fragments.items():
        for element in fragment.elements:
            if element.where in schema.COUNTED:
                yield name, (element.where, element.key, b""), ""
        for pool in fragment.pools:
            for key, data in pool.iterate():
                endpoint = host_port_text(data[:-4], int.from_bytes(data[-4:-2], "big"))
                yield name, (pool.where, key, data), endpoint


def read_element_counts(family: Family) -> Sequence[Count] | None:
    """Return every counter of the table; None when Pointsman has no table that counts. Raises KernelError."""
    specs = [spec for spec in schema.build_static_sets(counters=True) if spec.counter]
    with NftablesSocket() as socket:
        reader = Reader(socket, find_traits(family))
        head = reader.read_head()
        if head is None or head.comment != schema.build_table_comment(counters=True):
            return None
        return [count for spec in specs for count in parse_counts(spec, reader.read_elements(spec).values())]


def parse_counts(spec: SetSpec, elements: Iterable[KernelElement]) -> Iterator[Count]:
    """Yield the counters of one map."""
    for element in elements:
        key, endpoint = element.key, ""
        if not key:
            continue
        if spec.data is Data.ENDPOINT:
            key = key[:-SLOT_LENGTH]
            endpoint = host_port_text(element.data[:-4], int.from_bytes(element.data[-4:-2], "big"))
        address, protocol, port = key[:-8], key[-8], int.from_bytes(key[-4:-2], "big")
        yield Count(protocol, address, port, element.packets, endpoint)
