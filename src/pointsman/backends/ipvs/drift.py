"""A look whether somebody else changed what ipvs mode owns: names, settings and counts, over netlink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pointsman.backends.contract import PRESENT, Difference
from pointsman.backends.ipvs.known import Known
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.kernel import ipvs
from pointsman.kernel.ipset_objects import SetHeader
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, VirtualKey


class Watch:
    """Remembers what the last look found in order, so that looking at the same again is short.

    For virtual servers that is a digest of the kernel's listing; for addresses, of which the kernel tells every
    change, that there was none.
    """

    def __init__(self) -> None:
        self._digest: int | None = None
        self._addresses_right = False

    def servers_changed(self) -> None:
        """We changed some ourselves."""
        self._digest = None

    def drift(
        self, known: Known, sockets: Sockets, excluded: Callable[[VirtualKey], bool]
    ) -> Difference | None:
        """The first thing that is not as we left it; virtual servers `excluded` belong to others."""
        return (
            self._server_drift(known, sockets, excluded)
            or self._address_drift(known, sockets)
            or next(_set_drift(known, sockets.sets()), None)
        )

    def _server_drift(
        self, known: Known, sockets: Sockets, excluded: Callable[[VirtualKey], bool]
    ) -> Difference | None:
        listing = sockets.server_listing()
        seen = ipvs.digest(listing)
        if seen == self._digest:
            return None
        unlike, missing = ipvs.unlike(listing, known.servers.values())
        strange = [server.key for server in unlike if sockets.ours(server) and not excluded(server.key)]
        for want, have, keys in (
            (PRESENT, "", [server.key for server in missing]),
            (PRESENT, "other settings", [key for key in strange if key in known.servers]),
            ("", PRESENT, [key for key in strange if key not in known.servers]),
        ):
            if keys:
                return Difference(f"virtual server {keys[0]}", want, have, detail=f"{len(keys)} in all")
        self._digest = seen
        return None

    def _address_drift(self, known: Known, sockets: Sockets) -> Difference | None:
        if sockets.addresses_may_have_changed() or not self._addresses_right:
            self._addresses_right = sockets.addresses() == known.addresses
        return (
            None
            if self._addresses_right
            else Difference(f"addresses of {IPVS_DEVICE}", PRESENT, "other addresses")
        )


def _set_drift(known: Known, headers: Mapping[str, SetHeader]) -> Iterator[Difference]:
    for name, references in known.references.items():
        if name not in headers:
            yield Difference(f"ipset {name}", PRESENT)
        elif headers[name].references != references:
            found = headers[name].references
            yield Difference(f"rules that match on ipset {name}", str(references), str(found))
        elif headers[name].elements not in (-1, len(known.entries[name])):
            yield Difference(
                f"entries of ipset {name}", str(len(known.entries[name])), str(headers[name].elements)
            )
