"""Connections as virtual servers count them, read beside the proxy."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.backends.contract import Count
from pointsman.kernel.ipvs import IpvsSocket
from pointsman.model.addresses import Family


def server_counts(family: Family) -> Sequence[Count]:
    """The connections of every virtual server of the family. Raises KernelError."""
    socket = IpvsSocket()
    try:
        return [
            Count(server.key.protocol, server.key.address, server.key.port, counted.connections)
            for server, counted in socket.services().items()
            if len(server.key.address) == family.address_length
        ]
    finally:
        socket.close()
