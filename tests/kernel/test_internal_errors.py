"""A backend is kept after an internal error: the full sync that follows must be right, wherever the error happened."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from tests.factory import context, endpoint, plan, service_port

from pointsman.backends.contract import Backend, SyncRequest
from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("namespace")]

POINTS = 12
Plans = dict[ServicePortName, ServicePlan]


class InternalError(Exception):
    """A bug."""


class CountedCalls:
    """Counts the calls of backend functions and raises at one of them."""

    def __init__(self, fail_at: int = 0) -> None:
        self.count = 0
        self._fail_at = fail_at

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "/pointsman/backends/" in frame.f_code.co_filename:
            self.count += 1
            if self.count == self._fail_at:
                raise InternalError(frame.f_code.co_name)

    def run(self, call: Callable[[], object]) -> None:
        sys.setprofile(self)
        try:
            call()
        finally:
            sys.setprofile(None)


def web(number: int, *endpoints: str) -> ServicePlan:
    port = service_port(f"web-{number}", cluster_ip=f"10.96.0.{number}", affinity_seconds=300 * (number % 2))
    return plan(port, *map(endpoint, endpoints))


def generation(number: int) -> Plans:
    """Plans in which, from one generation to the next, an endpoint and a service port come, go and change."""
    plans = [
        web(1, "10.244.1.1", f"10.244.1.{2 + number % 5}"),
        web(2, *(["10.244.2.1"] if number % 2 else [])),
        web(10 + number % 3, "10.244.3.1"),
    ]
    return {one.name: one for one in plans}


def new_backend(mode: str) -> Backend:
    if mode == "nftables":
        return NftablesBackend(Family.IPV4)
    runner = Iptables(Family.IPV4, SystemCommands(), variant="nft")
    return IptablesBackend(Family.IPV4, runner=runner, sysctls=Sysctls())


def request(old: Plans, new: Plans, *, full: bool) -> SyncRequest:
    changed = {name: new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    return SyncRequest(context(), new, changed, full)


@pytest.mark.parametrize("full", [False, True], ids=["partial", "full"])
@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_a_full_sync_after_an_internal_error_anywhere_is_right(
    mode: str, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "xtables.lock"))
    with contextlib.closing(new_backend(mode)) as backend:
        plans = generation(0)
        backend.sync(request({}, plans, full=True))

        def advance(number: int, calls: CountedCalls) -> None:
            nonlocal plans
            old, plans = plans, generation(number)
            calls.run(lambda: backend.sync(request(old, plans, full=full)))

        calls = CountedCalls()
        advance(1, calls)
        for point in range(POINTS):
            with contextlib.suppress(InternalError):
                advance(2 + 2 * point, CountedCalls(1 + point * calls.count // POINTS))
            assert backend.sync(request({}, plans, full=True)).rejected == {}
            assert backend.prepare_comparison(request({}, plans, full=True)).differences() == []
            old, plans = plans, generation(3 + 2 * point)
            backend.sync(request(old, plans, full=False))
            assert backend.prepare_comparison(request({}, plans, full=True)).differences() == []
