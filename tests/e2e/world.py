"""A lab with a running proxy whose objects a test changes step by step."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from tests.e2e import harness
from tests.patience import PATIENCE

from pointsman.lab import HOSTS, Cluster
from pointsman.lab.objects import LabService
from pointsman.lab.probe import PATIENT_DEADLINE, Flow, Kind, Outcome, Probe, ask_all, run_probes
from pointsman.lab.proxy import ProxyProcess

FAMILIES = (4, 6)
T = TypeVar("T")


class World:
    """Cluster and proxy, with the questions tests ask."""

    def __init__(self, cluster: Cluster, proxy: ProxyProcess, mode: str) -> None:
        self.cluster = cluster
        self.proxy = proxy
        self.mode = mode

    def probe(self, host: str, service: LabService, to: str, family: int, protocol: str = "TCP") -> Probe:
        if to == "nodeport":
            return Probe(host, HOSTS["n1"].address(family), service.node_port, protocol)
        return Probe(host, service.address(to, family), service.ports[0], protocol)

    def ask(self, host: str, service: LabService, to: str = "cluster", count: int = 1) -> list[Outcome]:
        """`count` connections in each family."""
        probes = [self.probe(host, service, to, family) for family in FAMILIES] * count
        return run_probes(self.cluster, probes, PATIENT_DEADLINE)

    def answerers(self, host: str, service: LabService, to: str = "cluster", count: int = 40) -> set[str]:
        """Who answers, with anything but an answer shown as what it is."""
        return {o.by or o.kind.value for o in self.ask(host, service, to, count)}

    def is_silent(self, host: str, service: LabService, to: str = "cluster") -> bool:
        outcomes = run_probes(self.cluster, [self.probe(host, service, to, family) for family in FAMILIES])
        return all(outcome.kind is Kind.SILENT for outcome in outcomes)

    def destroy_rules(self) -> None:
        """As somebody else might do."""
        node = self.cluster["n1"]
        if self.mode == "nftables":
            for family in ("ip", "ip6"):
                node.run(("nft", "delete", "table", family, "kube-proxy"))
            return
        empty = "".join(f"*{table}\nCOMMIT\n" for table in ("nat", "filter", "mangle"))
        for tool in ("iptables-restore", "ip6tables-restore"):
            node.run((tool, "-w"), empty)

    @contextlib.contextmanager
    def flows(
        self, host: str, service: LabService, *places: str, protocol: str = "TCP"
    ) -> Iterator[dict[str, Flow]]:
        """Open flows to each place in both families, named like `lb-v6`."""
        with contextlib.ExitStack() as stack:
            made = {}
            for to in places:
                for family in FAMILIES:
                    flow = Flow(self.cluster, self.probe(host, service, to, family, protocol))
                    stack.callback(flow.close)
                    made[f"{to}-v{family}"] = flow
            yield made


def answers(flows: Mapping[str, Flow]) -> dict[str, str]:
    """Who answers on each flow, or how it fails."""
    outcomes = zip(flows, ask_all(list(flows.values())), strict=True)
    return {name: outcome.by or outcome.kind.value for name, outcome in outcomes}


def all_answer(flows: Mapping[str, Flow], wanted: str) -> bool:
    """Whether all flows come to be answered like that within a few seconds."""
    return settles(lambda: set(answers(flows).values()), lambda seen: seen == {wanted}) == {wanted}


@contextlib.contextmanager
def running(
    directory: Path,
    mode: str,
    services: Sequence[LabService] = (),
    *,
    through_api: bool = False,
    **changes: object,
) -> Iterator[World]:
    """A fresh lab and a proxy that has caught up with `services`."""
    with (
        harness.lab() as cluster,
        harness.proxy(cluster, directory, mode, through_api=through_api, **changes) as proxy,
    ):
        proxy.write(services)
        proxy.start()
        proxy.wait()
        yield World(cluster, proxy, mode)


def settles(question: Callable[[], T], wanted: Callable[[T], bool], seconds: float = 20.0) -> T:
    """Ask until the answer is as wanted or time is up; returns the last answer."""
    until = time.monotonic() + seconds * PATIENCE
    while True:
        answer = question()
        if wanted(answer) or time.monotonic() > until:
            return answer
        time.sleep(0.02)


class Stream:
    """New connections without pause, from another thread, until the block ends."""

    def __init__(self, cluster: Cluster, probes: Sequence[Probe]) -> None:
        self._cluster = cluster
        self._probes = probes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self.made = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            outcomes = run_probes(self._cluster, self._probes, PATIENT_DEADLINE)
            self.made += len(outcomes)
            self.failures += [
                f"{probe.host} -> {probe.address}:{probe.port}: {outcome}, {outcome.retransmissions} lost"
                for probe, outcome in zip(self._probes, outcomes, strict=True)
                if not outcome.smooth
            ]
