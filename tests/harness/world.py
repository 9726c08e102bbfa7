"""A lab with a proxy, and what its hosts reach through it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.harness import lab
from tests.harness.flows import Flow, ask_all
from tests.harness.node import MISSES
from tests.harness.waiting import wait_until

from pointsman.lab import HOSTS, Cluster
from pointsman.lab.objects import LabService
from pointsman.lab.probe import LONG_TIMEOUT_SECONDS, Kind, Outcome, Probe, run_probes
from pointsman.lab.proxy import LabProxy

FAMILIES = (4, 6)


class Clients:
    """Connections of the lab's hosts to a Service, in all families unless one is given."""

    families: tuple[int, ...] = FAMILIES
    timeout = LONG_TIMEOUT_SECONDS
    tries = 40

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def probe(self, host: str, service: LabService, to: str, family: int, protocol: str = "TCP") -> Probe:
        if to == "nodeport":
            return Probe(host, HOSTS["n1"].address(family), service.node_port, protocol)
        return Probe(host, service.address(to, family), service.ports[0], protocol)

    def ask(
        self, host: str, service: LabService, to: str = "cluster", count: int = 1, family: int = 0
    ) -> list[Outcome]:
        """Open `count` connections in each family."""
        families = (family,) if family else self.families
        probes = [self.probe(host, service, to, one) for one in families] * count
        return run_probes(self.cluster, probes, self.timeout)

    def answerers(
        self, host: str, service: LabService, to: str = "cluster", count: int = 0, family: int = 0
    ) -> set[str]:
        """Return who answers, and other outcomes by their kind."""
        return {o.by or o.kind.value for o in self.ask(host, service, to, count or self.tries, family)}


class World(Clients):
    """A lab with a running proxy whose objects a test changes step by step."""

    def __init__(self, cluster: Cluster, proxy: LabProxy, mode: str) -> None:
        super().__init__(cluster)
        self.proxy = proxy
        self.mode = mode

    def is_dropped(self, host: str, service: LabService, to: str = "cluster") -> bool:
        """Whether connections time out several times in a row; once could be a slow machine."""
        probes = [self.probe(host, service, to, family) for family in FAMILIES]
        rounds = (run_probes(self.cluster, probes) for _ in range(MISSES))
        return all(outcome.kind is Kind.TIMED_OUT for outcomes in rounds for outcome in outcomes)

    def destroy_rules(self) -> None:
        """Remove all rules externally."""
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
        """Open flows to each frontend in both families, named like `lb-v6`."""
        with contextlib.ExitStack() as stack:
            made = {}
            for to in places:
                for family in FAMILIES:
                    flow = Flow(self.cluster, self.probe(host, service, to, family, protocol))
                    stack.callback(flow.close)
                    made[f"{to}-v{family}"] = flow
            yield made


def answers(flows: Mapping[str, Flow]) -> dict[str, str]:
    """Return who answers on each flow, or how it fails."""
    outcomes = zip(flows, ask_all(list(flows.values())), strict=True)
    return {name: outcome.by or outcome.kind.value for name, outcome in outcomes}


def wait_answers(flows: Mapping[str, Flow], wanted: str) -> None:
    """Wait until every flow is answered like that."""
    wait_until(lambda: set(answers(flows).values()), lambda seen: seen == {wanted}, seconds=20)


@contextlib.contextmanager
def running(
    directory: Path,
    mode: str,
    services: Sequence[LabService] = (),
    *,
    through_api: bool = False,
    **changes: object,
) -> Iterator[World]:
    """Run a new lab and a proxy that serves `services`."""
    with (
        lab.build_lab() as cluster,
        lab.prepare_proxy(cluster, directory, mode, through_api=through_api, **changes) as proxy,
    ):
        proxy.write(services)
        proxy.start()
        proxy.wait()
        yield World(cluster, proxy, mode)
