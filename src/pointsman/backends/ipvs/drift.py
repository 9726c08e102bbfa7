"""A look whether somebody else changed what ipvs mode owns: names, settings and counts, over netlink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pointsman.backends.contract import Damage, Drift
from pointsman.backends.ipvs.known import Known
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.kernel.ipset_objects import SetHeader
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, VirtualKey, VirtualServer


def found_drift(known: Known, sockets: Sockets, excluded: Callable[[VirtualKey], bool]) -> Drift | None:
    """The first thing that is not as we left it; virtual servers `excluded` belong to others."""
    extra, missing = sockets.compare_servers(known.servers.values())
    drift = _server_drift(known, [server for server in extra if not excluded(server.key)], missing)
    if drift is None and sockets.addresses() != known.addresses:
        drift = Drift(f"addresses of {IPVS_DEVICE}", Damage.CHANGED)
    return drift or next(_set_drift(known, sockets.sets()), None)


def _server_drift(known: Known, extra: list[VirtualServer], missing: list[VirtualServer]) -> Drift | None:
    found = [server.key for server in extra]
    for damage, keys in (
        (Damage.DELETED, [server.key for server in missing]),
        (Damage.CHANGED, [key for key in found if key in known.servers]),
        (Damage.ADDED, [key for key in found if key not in known.servers]),
    ):
        if keys:
            return Drift(f"virtual server {keys[0]}", damage, f"{len(keys)} in all")
    return None


def _set_drift(known: Known, headers: Mapping[str, SetHeader]) -> Iterator[Drift]:
    for name, references in known.references.items():
        if name not in headers:
            yield Drift(f"ipset {name}", Damage.DELETED)
        elif headers[name].references != references:
            yield Drift(f"rules that match on ipset {name}", Damage.CHANGED)
        elif headers[name].elements not in (-1, len(known.entries[name])):
            yield Drift(f"entries of ipset {name}", Damage.CHANGED)
