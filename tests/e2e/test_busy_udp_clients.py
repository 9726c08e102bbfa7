"""UDP clients that never pause and keep their source port live through every kind of change, and none stays dead."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.e2e.busy_clients import BusyClients
from tests.e2e.random_service import RandomService, answering
from tests.harness import lab as harness
from tests.harness.waiting import wait_until
from tests.harness.world import FAMILIES, World, running

from pointsman.lab.objects import LabService, backends
from pointsman.lab.probe import Probe
from pointsman.lab.proxy import configuration

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

SEED = int(os.environ.get("POINTSMAN_SEED", str(time.time_ns() % 1_000_000)))
CLIENTS_EACH = 3
CHANGES_PER_ROUND = 3
PATIENCE = 8.0
TARGET = LabService("busy", 1, protocols=("UDP",))
PATIENT: dict[str, Any] = {mode: {"syncPeriod": "2s"} for mode in ("nftables", "iptables")}
"""How soon damage is noticed."""


def _places(world: World) -> dict[str, Probe]:
    return {
        f"{host} to {to} over IPv{family}": world.probe(host, TARGET, to, family, "UDP")
        for host in ("client", "pod3", "pod6", "n1")
        for to in ("cluster", "lb", "external", "nodeport")
        for family in FAMILIES
    }


def _restart(world: World) -> None:
    world.proxy.stop()
    world.proxy.start()


def _other_mode(world: World) -> None:
    world.mode = "iptables" if world.mode == "nftables" else "nftables"
    world.proxy.configure(configuration(world.mode, **PATIENT))
    _restart(world)


def _nothing(_world: World) -> None:
    pass


EVENTS: tuple[Callable[[World], None], ...] = (
    *[_nothing] * 10,
    _restart,
    _restart,
    _other_mode,
    World.destroy_rules,
)
"""One per round."""


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_no_busy_udp_client_stays_dead_whatever_changes(tmp_path: Path, mode: str) -> None:
    print(f"again with POINTSMAN_SEED={SEED}")
    random = Random(SEED)
    service = RandomService(random)
    events = random.sample(EVENTS, len(EVENTS))
    history: list[str] = []
    judged = 0
    with running(tmp_path, mode, **PATIENT) as world:
        places = _places(world)
        with BusyClients(world.cluster, places, CLIENTS_EACH) as clients:
            for event in events:
                history.append(event.__name__)
                for step in range(CHANGES_PER_ROUND):
                    made = service.change(of_endpoints=step == CHANGES_PER_ROUND - 1)
                    history.append(repr(made))
                    world.proxy.write([made] if made else [])
                    time.sleep(random.random() * 0.2)
                    if not step:
                        event(world)
                world.proxy.wait()
                served, dead = clients.judged(answering(service.now), PATIENCE)
                judged += len(served)
                told = "\n".join(["Dead:", *dead, "History:", *history])
                assert not dead, f"POINTSMAN_SEED={SEED}\n{told}"
        print("sent", clients.sent, judged)
        assert clients.sent > 100
    assert judged, f"nothing was served in any round; seed {SEED}"


@pytest.mark.parametrize("mode", harness.MODES)
def test_busy_udp_clients_are_answered_whenever_the_only_local_endpoint_returns(
    tmp_path: Path, mode: str
) -> None:
    """Endpoints elsewhere remain, so that packets are dropped meanwhile, by a table that is replaced before nat."""
    local = msgspec.structs.replace(
        TARGET, type="LoadBalancer", external=True, internal_policy="Local", external_policy="Local"
    )
    with running(tmp_path, mode) as world:
        places = {
            f"{host} to {to} over IPv{family}": world.probe(host, TARGET, to, family, "UDP")
            for host, to in (
                *(("client", to) for to in ("cluster", "lb", "external", "nodeport")),
                ("pod3", "cluster"),
                ("n1", "cluster"),
            )
            for family in FAMILIES
        }
        with BusyClients(world.cluster, places, 8) as clients:
            for _ in range(6):
                world.proxy.apply([msgspec.structs.replace(local, backends=backends("pod4"))])
                time.sleep(0.2)
                world.proxy.apply([msgspec.structs.replace(local, backends=backends("pod1", "pod4"))])
                since = time.monotonic()
                assert not wait_until(
                    partial(clients.unanswered, list(places), since, frozenset({"pod1"})),
                    lambda dead: not dead,
                    PATIENCE,
                )
