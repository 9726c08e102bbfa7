"""Which rules of another mode go after a switch, where both modes share chains; on tables in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.fake.iptables_tables import IptablesTables
from tests.harness.node import LabNode, needs_root

from pointsman.backends import mode_named
from pointsman.backends.contract import CleanupContext, SyncRequest
from pointsman.backends.iptables import cleanup as iptables_cleanup
from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.backends.ipvs import cleanup as ipvs_cleanup
from pointsman.backends.ipvs import rules as ipvs_rules
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family

WITHOUT_ENDPOINTS = plan(service_port("empty", cluster_ip="10.96.0.66"))
WITH_ENDPOINTS = plan(service_port("web"), endpoint())


@pytest.fixture
def tables() -> IptablesTables:
    return IptablesTables()


def _iptables_mode(tables: IptablesTables, root: Path) -> None:
    backend = IptablesBackend(
        Family.IPV4,
        runner=Iptables(Family.IPV4, tables),
        sysctls=Sysctls(root),
        ensure_counter=lambda name: None,
    )
    plans = {one.name: one for one in (WITHOUT_ENDPOINTS, WITH_ENDPOINTS)}
    backend.sync(SyncRequest(context(), plans, {}, full=True))


def _ipvs_mode(tables: IptablesTables) -> None:
    """Its chains, emptied as each of its syncs does, and its jumps."""
    lines = []
    for table, chains in ipvs_rules.CHAINS.items():
        lines += [f"*{table}", *(f":{chain} - [0:0]" for chain in chains)]
        lines += [f"-A {jump.line}" for jump in ipvs_rules.JUMPS if jump.table == table]
        lines += ["COMMIT"]
    Iptables(Family.IPV4, tables).restore("\n".join(lines).encode() + b"\n")


def test_after_a_switch_to_ipvs_nothing_rejects_for_iptables_mode_any_more(
    tables: IptablesTables, tmp_path: Path
) -> None:
    _iptables_mode(tables, tmp_path)
    assert "10.96.0.66" in tables.saved("filter")
    _ipvs_mode(tables)
    cleaning = CleanupContext(Sysctls(tmp_path), (Family.IPV4,), mode_named("ipvs").chains)
    runner = Iptables(Family.IPV4, tables)
    assert list(iptables_cleanup.cleanup([runner], cleaning, delete_counter=lambda name: False))
    for table, chains in ipvs_rules.CHAINS.items():
        text = tables.saved(table)
        assert "10.96.0.66" not in text
        assert {chain for chain in tables.tables[table] if chain.startswith("KUBE-")} == set(chains)
        for jump in ipvs_rules.JUMPS:
            if jump.table == table:
                assert f"-A {jump.line}" in text


@needs_root[0]
@needs_root[1]
def test_after_a_switch_to_iptables_the_chains_of_ipvs_alone_go(
    tables: IptablesTables, tmp_path: Path, node: LabNode
) -> None:
    _ipvs_mode(tables)
    _iptables_mode(tables, tmp_path)
    serving = {table: set(chains) for table, chains in tables.tables.items()}
    with node.namespace.entered():  # its kernel holds neither virtual servers nor sets
        assert list(ipvs_cleanup.cleanup([Iptables(Family.IPV4, tables)], mode_named("iptables").chains))
    for table in ("nat", "filter"):
        gone = serving[table] - set(tables.tables[table])
        assert gone == ipvs_cleanup.OWN_CHAINS & set(ipvs_rules.CHAINS[table])
        assert not any(chain in tables.saved(table) for chain in ipvs_cleanup.OWN_CHAINS)
    assert "10.96.0.66" in tables.saved("filter")
