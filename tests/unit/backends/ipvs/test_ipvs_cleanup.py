"""Clean-up of ipvs mode removes virtual servers, but not those of other programs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.factory import packed

from pointsman.backends.contract import CleanupContext, CleanupItem, CleanupStatus
from pointsman.backends.ipvs import cleanup
from pointsman.backends.ipvs.mode import MODE
from pointsman.errors import NotSupported
from pointsman.kernel.ipvs import encode_service_removal
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, IPVS_DEVICE_ALIAS, VirtualKey, VirtualServer
from pointsman.kernel.netlink import Reply
from pointsman.kernel.rtnl import Link
from pointsman.kernel.sysctl import Sysctls

OWN = VirtualKey(6, packed("10.96.0.1"), 443)
FOREIGN = VirtualKey(6, packed("192.0.2.7"), 80)


class FakeIpvs:
    """Two virtual servers, and what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def list_services(self) -> list[VirtualServer]:
        return [VirtualServer(key, "rr") for key in (OWN, FOREIGN)]

    def apply(self, payloads: Sequence[bytes]) -> list[Reply]:
        self.sent += payloads
        return [Reply(0)] * len(payloads)


class FakeRoute:
    """A host on which ipvs mode has run."""

    def list_links(self) -> list[Link]:
        return [Link(IPVS_DEVICE, 7, alias=IPVS_DEVICE_ALIAS)]

    def delete_link(self, _name: str) -> bool:
        return True


def _open_no_sets() -> Any:
    raise NotSupported("no ipset")


@pytest.mark.parametrize("dry_run", [False, True])
def test_excluded_virtual_servers_stay(
    dry_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipvs = FakeIpvs()
    monkeypatch.setattr(cleanup, "IpvsSocket", lambda: nullcontext(ipvs))
    monkeypatch.setattr(cleanup, "RouteSocket", lambda: nullcontext(FakeRoute()))
    monkeypatch.setattr(cleanup, "IpsetSocket", _open_no_sets)
    cleaning = CleanupContext(Sysctls(tmp_path), (), dry_run=dry_run, exclude_cidrs=("192.0.2.0/24",))
    assert list(MODE.cleanup(cleaning)) == [
        CleanupItem("virtual servers", count=1),
        CleanupItem("virtual servers", status=CleanupStatus.KEPT, why="in ipvs.excludeCIDRs", count=1),
        CleanupItem("device", IPVS_DEVICE),
    ]
    assert ipvs.sent == ([] if dry_run else [encode_service_removal(OWN)])
