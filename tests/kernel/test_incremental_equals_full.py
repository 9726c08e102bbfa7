"""Any sequence of partial syncs, also across a restart, leaves the kernel as one full sync of the last state does."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.golden import compare_iptables
from tests.golden.recorded_node import recorded_node
from tests.golden.scenario import Replay, Scenario, Step
from tests.harness.config_file import config_from_bytes
from tests.kernel import random_changes

from pointsman.backends.contract import Backend
from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(shutil.which("nft") is None, reason="the nft program is the independent reader"),
]

STEPS = 10
CONFIG = b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16,fd00:10:244::/48\n"
SLOTTED = ("endpoints", "local-endpoints", "nodeport-endpoints", "local-nodeport-endpoints")


@pytest.fixture(autouse=True)
def own_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "xtables.lock"))


@contextmanager
def _process(mode: str) -> Iterator[Replay]:
    """The backends of both families, in the namespace of the calling thread."""
    config = config_from_bytes(CONFIG)
    backends = [_backend(mode, family) for family in Family]
    try:
        yield Replay(Scenario("random", config, (), ""), mode, backends)
    finally:
        for backend in backends:
            backend.close()


def _backend(mode: str, family: Family) -> Backend:
    if mode == "nftables":
        return NftablesBackend(family)
    return IptablesBackend(family, runner=Iptables(family, SystemCommands()), sysctls=Sysctls())


def _iptables_differences(fresh: Namespace, changed: Namespace) -> list[str]:
    return [
        line
        for program in ("iptables-save", "ip6tables-save")
        for line in compare_iptables.differences(fresh.run([program]), changed.run([program]))
    ]


def _nft_differences(fresh: Namespace, changed: Namespace) -> list[str]:
    want, have = _nft_objects(fresh), _nft_objects(changed)
    missing = [f"- {entry}" for entry in sorted(want - have)]
    return missing + [f"+ {entry}" for entry in sorted(have - want)]


def _nft_objects(node: Namespace) -> set[str]:
    """Every object as text: rules numbered within their chain, elements on their own, slots without their number."""
    found: set[str] = set()
    for family in ("ip", "ip6"):
        listed = json.loads(node.run(["nft", "-j", "list", "table", family, "kube-proxy"]))["nftables"]
        reached = _reached_chains(listed)
        timeouts = {
            name
            for entry in listed
            if (rule := entry.get("rule")) and rule["chain"] in reached
            for name in re.findall(r'"ct timeout": "([^"]+)"', json.dumps(rule))
        }
        rules: defaultdict[str, int] = defaultdict(int)
        for entry in listed:
            ((kind, item),) = entry.items()
            item.pop("handle", None)
            elements = item.pop("elem", [])
            chain = item["name"] if kind == "chain" else item.get("chain")
            if chain is not None and chain not in reached:
                continue
            if kind == "ct timeout" and item["name"] not in timeouts:
                continue
            if kind == "rule":
                item["place"] = rules[chain]
                rules[chain] += 1
            found.add(f"{family} {kind} {json.dumps(item, sort_keys=True)}")
            if item.get("name") in SLOTTED:
                elements = _without_slots(elements)
            found.update(f"{family} {item.get('name')} {json.dumps(e, sort_keys=True)}" for e in elements)
    return found


def _reached_chains(listed: list[Any]) -> set[str]:
    """Chains that packets can get to: a few idle balancers (and their timeouts) are kept in stock, which is no difference."""
    leads: defaultdict[str, set[str]] = defaultdict(set)
    reached: set[str] = set()
    for entry in listed:
        ((kind, item),) = entry.items()
        targets = set(re.findall(r'"target": "([^"]+)"', json.dumps(item)))
        if kind == "rule":
            leads[item["chain"]] |= targets
        elif kind == "map":
            reached |= targets
        elif kind == "chain" and "hook" in item:
            reached.add(item["name"])
    waiting = list(reached)
    while waiting:
        new = leads[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def _without_slots(elements: list[Any]) -> Iterator[Any]:
    """An endpoint keeps its slot while others come and go; the slots of a frontend must still be 0 to n-1."""
    pools: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for key, target in elements:
        *frontend, slot = key["concat"]
        pools[json.dumps(frontend)][slot] = json.dumps(target)
    for frontend, targets in pools.items():
        assert sorted(targets) == list(range(len(targets))), frontend
        yield [frontend, sorted(targets.values())]


DIFFERENCES: dict[str, Callable[[Namespace, Namespace], list[str]]] = {
    "iptables": _iptables_differences,
    "nftables": _nft_differences,
}


def _advance_all(process: Replay, steps: list[Step]) -> int:
    """Bring the kernel through the steps; returns how many syncs were partial."""
    partial = 0
    for step in steps:
        outcomes = process.advance(step)
        partial += sum(not outcome.report.full for outcome in outcomes.values())
        assert all(not outcome.report.rejected for outcome in outcomes.values())
    return partial


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("mode", list(DIFFERENCES))
def test_partial_syncs_and_a_restart_end_where_a_full_sync_begins(mode: str, seed: int) -> None:
    random = Random(seed)
    steps = list(random_changes.steps(random, STEPS))
    restart = random.randint(2, STEPS - 2)
    with recorded_node() as changed:
        partial = 0
        for part in (steps[:restart], steps[restart:]):
            with _process(mode) as process:
                partial += _advance_all(process, part)
        assert partial > 0
        with recorded_node() as fresh:
            with _process(mode) as process:
                process.advance(steps[-1])
            assert DIFFERENCES[mode](fresh, changed) == []
