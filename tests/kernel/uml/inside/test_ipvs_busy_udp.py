"""UDP clients that never pause and keep their source port, while everything changes in ipvs mode: none stays dead."""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.e2e.busy_clients import BusyClients
from tests.e2e.random_service import RandomService, answering
from tests.harness.flows import Flow, ask_all
from tests.harness.lab import build_lab
from tests.harness.waiting import wait_until
from tests.kernel.uml.inside.world import TIMEOUT_SECONDS, IpvsWorld

from pointsman.app import modes
from pointsman.backends import mode_named
from pointsman.backends.contract import CleanupStatus, Mode, Setup, SyncRequest
from pointsman.config.types import KubeProxyConfiguration
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.objects import Backend, LabService, backends
from pointsman.model.addresses import Family
from pointsman.obs.registry import Metrics
from pointsman.sync.flow_cleaner import StaleFlowCleaner
from pointsman.sync.reconcile import PlanChange, SyncOutcome

SEED = int(os.environ.get("POINTSMAN_SEED", str(time.time_ns() % 1_000_000)))
TARGET = LabService("busy", 1, protocols=("UDP",))
ROUNDS = 8
CHANGES_PER_ROUND = 3
RETURNS = 4
PATIENCE = 20.0


class Cleaners:
    """What the process does about flows after a sync."""

    def __init__(self) -> None:
        self._cleaners = {family: StaleFlowCleaner(family, Metrics("ipvs")) for family in Family}

    def after(self, outcomes: dict[Family, SyncOutcome]) -> None:
        for family, outcome in outcomes.items():
            self._cleaners[family].add(outcome.changes, outcome.context)
            if outcome.report.full:
                self._cleaners[family].add_everything()
            assert self._cleaners[family].run().problem == ""


def test_no_busy_udp_client_stays_dead_whatever_changes_in_ipvs_mode(
    iptables: dict[Family, Iptables],
) -> None:
    print(f"again with POINTSMAN_SEED={SEED}")
    random = Random(SEED)
    service = RandomService(random)
    restarts = random.sample(range(ROUNDS), 2)
    history: list[str] = []
    judged = 0
    with build_lab() as cluster:
        world, cleaners = IpvsWorld(cluster, iptables), Cleaners()
        places = {
            f"{host} to {to} over IPv{family}": world.probe(host, TARGET, to, family, "UDP")
            for host in ("client", "pod1", "pod3", "n1")
            for to in ("cluster", "lb", "external", "nodeport")
            for family in (4, 6)
        }
        with BusyClients(cluster, places, 2) as clients:
            for number in range(ROUNDS):
                if number in restarts:
                    history.append("restart")
                    world.restart()
                    cleaners = Cleaners()
                for step in range(CHANGES_PER_ROUND):
                    made = service.change(of_endpoints=step == CHANGES_PER_ROUND - 1)
                    history.append(repr(made))
                    outcomes = world.apply([made] if made else [])
                    with cluster["n1"].entered():
                        cleaners.after(outcomes)
                served, dead = clients.judged(answering(service.now), PATIENCE)
                judged += len(served)
                told = "\n".join(["Dead:", *dead, "History:", *history])
                assert not dead, f"POINTSMAN_SEED={SEED}\n{told}"
        world.close()
    assert judged, f"nothing was served in any round; seed {SEED}"


def test_where_asked_a_udp_flow_stays_on_a_terminating_endpoint_until_it_is_removed(
    iptables: dict[Family, Iptables],
) -> None:
    """The flows of another Service, which move with the same change, show that flows were checked."""
    keeps = LabService(
        *("keeps", 1, backends("pod1")),
        protocols=("UDP",),
        annotations={"pointsman.dev/udp-draining": "keep"},
    )
    moves = LabService("moves", 2, backends("pod1"), protocols=("UDP",))
    ends = Backend("pod1", {"ready": False, "serving": False, "terminating": True})
    with build_lab() as cluster, contextlib.ExitStack() as stack:
        world, cleaners = IpvsWorld(cluster, iptables), Cleaners()
        stack.callback(world.close)

        def apply(kept: tuple[Backend, ...], moved: tuple[Backend, ...]) -> None:
            services = [
                msgspec.structs.replace(keeps, backends=kept),
                msgspec.structs.replace(moves, backends=moved),
            ]
            outcomes = world.apply(services)
            with cluster["n1"].entered():
                cleaners.after(outcomes)

        def open_flows(service: LabService) -> list[Flow]:
            flows = [
                Flow(cluster, world.probe("pod3", service, "cluster", family, "UDP"), TIMEOUT_SECONDS)
                for family in (4, 6)
            ]
            for flow in flows:
                stack.callback(flow.close)
            return flows

        def list_answers(flows: list[Flow]) -> list[str]:
            return [outcome.by or outcome.kind.value for outcome in ask_all(flows)]

        apply(backends("pod1"), backends("pod1"))
        kept, moved = open_flows(keeps), open_flows(moves)
        assert list_answers(kept) == list_answers(moved) == ["pod1"] * 2
        apply((ends, *backends("pod4")), (ends, *backends("pod4")))
        wait_until(lambda: list_answers(moved), lambda found: found == ["pod4"] * 2, seconds=20)
        assert list_answers(open_flows(keeps)) == ["pod4"] * 2
        assert list_answers(kept) == ["pod1"] * 2
        apply(backends("pod4"), backends("pod4"))
        wait_until(lambda: list_answers(kept), lambda found: found == ["pod4"] * 2, seconds=20)


@pytest.mark.parametrize(
    ("service", "targets"),
    [
        pytest.param(TARGET, ("cluster",), id="refused-meanwhile"),
        pytest.param(
            msgspec.structs.replace(TARGET, type="LoadBalancer", external=True),
            ("cluster", "lb", "external", "nodeport"),
            id="served-elsewhere-meanwhile",
        ),
    ],
)
def test_busy_udp_clients_are_answered_whenever_the_only_local_endpoint_returns_in_ipvs_mode(
    iptables: dict[Family, Iptables], service: LabService, targets: tuple[str, ...]
) -> None:
    """The endpoint is also a client of its own, so that its packets must be masqueraded."""
    local = msgspec.structs.replace(service, internal_policy="Local", external_policy="Local")
    with build_lab() as cluster:
        world, cleaners = IpvsWorld(cluster, iptables), Cleaners()

        def apply(*hosts: str) -> None:
            outcomes = world.apply([msgspec.structs.replace(local, backends=backends(*hosts))])
            with cluster["n1"].entered():
                cleaners.after(outcomes)

        places = {
            f"{host} to {to} over IPv{family}": world.probe(host, TARGET, to, family, "UDP")
            for host in ("client", "pod1", "pod3", "n1")
            for to in targets
            for family in (4, 6)
        }
        with BusyClients(cluster, places, 4) as clients:
            for _ in range(RETURNS):
                apply("pod4")
                time.sleep(0.5)
                apply("pod1", "pod4")
                since = time.monotonic()
                assert not wait_until(
                    partial(clients.unanswered, list(places), since, frozenset({"pod1"})),
                    lambda dead: not dead,
                    PATIENCE,
                )
        world.close()


def _take_over(world: IpvsWorld, mode: Mode, directory: Path) -> None:
    """What a process of another mode does when it starts, and then about flows; in n1."""
    setup = Setup(KubeProxyConfiguration(mode=mode.name))
    cleaners = {family: StaleFlowCleaner(family, Metrics(mode.name)) for family in Family}
    for family, reconciler in world.reconcilers.items():
        context, plans = world.contexts[family], reconciler.plans
        backend = mode.backend(setup, family, Sysctls())
        backend.sync(SyncRequest(context=context, plans=plans, changed={}, full=True))
        backend.close()
        changes = {name: PlanChange(None, plan) for name, plan in plans.items()}
        cleaners[family].add(changes, context)
        assert cleaners[family].run().problem == ""
    assert {one.status for one in modes.remove_leftovers(mode, directory)} == {CleanupStatus.REMOVED}
    for cleaner in cleaners.values():
        cleaner.add_everything()
        assert cleaner.run().problem == ""


@pytest.mark.parametrize("name", ["iptables", "nftables"])
def test_no_busy_udp_client_stays_dead_when_another_mode_takes_over(
    iptables: dict[Family, Iptables], tmp_path: Path, name: str
) -> None:
    """IPVS translates by itself, and no rule of another mode goes on with a flow that it began: those flows must go.

    Clients on the node have the Service's address as their own, which goes with kube-ipvs0, but for those at node ports.
    """
    mode = mode_named(name)
    missing = [
        what for family in Family for what in mode.preflight(Setup(KubeProxyConfiguration(mode=name)), family)
    ]
    if missing:
        pytest.skip("; ".join(missing))
    service = msgspec.structs.replace(
        TARGET, type="LoadBalancer", external=True, backends=backends("pod1", "pod4")
    )
    with build_lab() as cluster:
        world = IpvsWorld(cluster, iptables)
        world.apply([service])
        places = {
            f"{host} to {to} over IPv{family}": world.probe(host, service, to, family, "UDP")
            for host in ("client", "pod1", "pod3", "n1")
            for to in ("cluster", "lb", "external", "nodeport")
            for family in (4, 6)
            if host != "n1" or to == "nodeport"
        }

        def dead() -> list[str]:
            since = time.monotonic()
            return wait_until(
                partial(clients.unanswered, list(places), since, frozenset({"pod1", "pod4"})),
                lambda found: not found,
                PATIENCE,
            )

        with BusyClients(cluster, places, 4) as clients:
            assert dead() == []
            with cluster["n1"].entered():
                _take_over(world, mode, tmp_path)
            assert dead() == []
        world.close()
