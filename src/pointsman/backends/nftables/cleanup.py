"""Removes the table `kube-proxy` of both IP families, whoever made it."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.backends.contract import Cleaning, Removed
from pointsman.backends.nftables.batch import Batch, Steps
from pointsman.backends.nftables.family_traits import traits_of
from pointsman.backends.nftables.reader import Reader
from pointsman.backends.nftables.schema import TABLE
from pointsman.errors import NotSupported
from pointsman.kernel.nfnl import NftablesSocket, nftables_message
from pointsman.model.addresses import Family


def cleanup(_cleaning: Cleaning) -> Iterator[Removed]:
    """Both families, also one that this machine does not speak any more. Fine to repeat."""
    try:
        socket = NftablesSocket()
    except NotSupported:
        return
    try:
        for family in Family:
            traits = traits_of(family)
            try:
                present = Reader(socket, traits).head() is not None
            except NotSupported:
                return
            if present:
                deletion = Batch(traits, [Steps(traits).delete_table()]).messages()
                socket.commit(
                    [nftables_message(kind, traits.nfproto, flags, body) for kind, flags, body in deletion]
                )
                yield Removed("table", f"{traits.keyword} {TABLE}")
    finally:
        socket.close()
