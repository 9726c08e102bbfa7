"""Rules written with nft inside the tables of iptables-nft, which it can add to and cannot list."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.golden.recorded_node import recorded_node

from pointsman.backends.contract import CleanupContext, CleanupStatus, SyncReport, SyncRequest
from pointsman.backends.iptables import static
from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.backends.iptables.cleanup import cleanup as clean_up_iptables
from pointsman.backends.ipvs.cleanup import cleanup as clean_up_ipvs
from pointsman.backends.ipvs.rules import CHAINS
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.runners import find_missing_programs
from pointsman.cli import cleanup
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.iptables_programs import NFT, OVERRIDE
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        shutil.which("nft") is None, reason="the nft program writes what iptables cannot list"
    ),
]

NATIVE = ("masquerade", "ct state new counter")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    monkeypatch.setenv(OVERRIDE, NFT)
    with recorded_node() as namespace:
        yield namespace


def runner() -> Iptables:
    return Iptables(Family.IPV4, SystemCommands(), variant=NFT)


def spoil(node: Namespace, rule: str) -> None:
    """What somebody who prefers nft does."""
    node.run(["nft", "add", "table", "ip", "nat"])
    chain = "chain ip nat POSTROUTING { type nat hook postrouting priority 100 ; }"
    node.run(["nft", "-f", "-"], f"add {chain}\ninsert rule ip nat POSTROUTING {rule}\n")


def sync(backend: IptablesBackend, *, full: bool = False) -> SyncReport:
    made = plan(service_port("web"), endpoint("10.244.1.1"))
    return backend.sync(SyncRequest(context(), {made.name: made}, {made.name: made}, full))


@pytest.mark.parametrize("rule", NATIVE)
def test_clean_up_that_cannot_list_a_table_says_so_and_cleans_the_others(
    node: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    sync(IptablesBackend(Family.IPV4, runner=runner(), sysctls=Sysctls()))
    spoil(node, rule)
    assert cleanup.main([f"--state-dir={tmp_path}"]) == 1
    told = capsys.readouterr()
    assert "could not clean up rules in iptables-nft table nat" in told.err
    assert "is incompatible, use 'nft' tool" in told.err
    assert "removed chain KUBE-SERVICES in iptables-nft table filter" in told.out
    assert not runner().has_chain(FILTER, "KUBE-SERVICES")
    assert runner().has_chain(NAT, "KUBE-SERVICES")
    node.run(["nft", "flush", "chain", "ip", "nat", "POSTROUTING"])
    assert cleanup.main([f"--state-dir={tmp_path}"]) == 0
    assert not runner().has_chain(NAT, "KUBE-SERVICES")


@pytest.mark.parametrize("rule", NATIVE)
def test_a_table_that_cannot_be_listed_and_holds_nothing_of_a_proxy_is_nobodys_failure(
    node: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    spoil(node, rule)
    assert cleanup.main([f"--state-dir={tmp_path}"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"


@pytest.mark.parametrize("rule", NATIVE)
def test_preflight_names_the_rules_that_stand_in_the_way(node: Namespace, rule: str) -> None:
    assert find_missing_programs(Family.IPV4) == []
    spoil(node, rule)
    (problem,) = find_missing_programs(Family.IPV4)
    assert "move them to another table, or use mode nftables" in problem
    assert "install" not in problem


@pytest.mark.parametrize("rule", NATIVE)
def test_syncs_go_on_while_such_rules_are_there(node: Namespace, rule: str) -> None:
    backend = IptablesBackend(Family.IPV4, runner=runner(), sysctls=Sysctls())
    sync(backend)
    spoil(node, rule)
    report = sync(backend, full=True)
    assert report.rejected == {}
    (condition,) = report.conditions
    assert condition.type == "TablesReadable"
    assert "move them" in condition.message
    assert runner().has_chain(NAT, "KUBE-SERVICES")


@pytest.mark.parametrize("rule", NATIVE)
def test_chains_of_the_running_mode_are_no_leftovers_of_another(node: Namespace, rule: str) -> None:
    sync(IptablesBackend(Family.IPV4, runner=runner(), sysctls=Sysctls()))
    spoil(node, rule)
    assert list(clean_up_ipvs([runner()], static.CHAINS)) == []
    cleaning = CleanupContext(Sysctls(), (Family.IPV4,), keep=CHAINS)
    found = list(clean_up_iptables([runner()], cleaning, delete_counter=no_counter))
    assert [one.where for one in found if one.status is CleanupStatus.FAILED] == ["iptables-nft table nat"]


def no_counter(_name: str) -> bool:
    return False
