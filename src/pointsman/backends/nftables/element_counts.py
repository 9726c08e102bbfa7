"""Connections as the table itself counts them, read beside the proxy: no state of the backend is needed.

What a key holds says whose counter it is; see `counters` for the totals of the running process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pointsman.backends.contract import Count
from pointsman.backends.nftables import schema
from pointsman.backends.nftables.family_traits import traits_of
from pointsman.backends.nftables.key_fields import SLOT_LENGTH
from pointsman.backends.nftables.reader import KernelElement, Reader
from pointsman.backends.nftables.schema import Data, SetSpec
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.model.addresses import Family, host_port_text


def element_counts(family: Family) -> Sequence[Count] | None:
    """Every counter of the table; None when there is no table of ours that counts. Raises KernelError."""
    specs = [spec for spec in schema.static_sets(counters=True) if spec.counter]
    socket = NftablesSocket()
    try:
        reader = Reader(socket, traits_of(family))
        head = reader.head()
        if head is None or head.comment != schema.table_comment(counters=True):
            return None
        return [count for spec in specs for count in counts_of(spec, reader.elements(spec).values())]
    finally:
        socket.close()


def counts_of(spec: SetSpec, elements: Iterable[KernelElement]) -> Iterator[Count]:
    """The counters of one map."""
    for element in elements:
        key, endpoint = element.key, ""
        if not key:
            continue
        if spec.data is Data.ENDPOINT:
            key = key[:-SLOT_LENGTH]
            endpoint = host_port_text(element.data[:-4], int.from_bytes(element.data[-4:-2], "big"))
        address, protocol, port = key[:-8], key[-8], int.from_bytes(key[-4:-2], "big")
        yield Count(protocol, address, port, element.packets, endpoint)
