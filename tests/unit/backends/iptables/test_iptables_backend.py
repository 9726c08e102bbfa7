"""The backend over tables in memory: what it sends, what it keeps, how it fails."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.fake.iptables_tables import IptablesTables

from pointsman.backends.contract import CleanupContext, CleanupItem, CleanupStatus, SyncReport, SyncRequest
from pointsman.backends.iptables.apply import IptablesBackend
from pointsman.backends.iptables.cleanup import cleanup
from pointsman.errors import Busy, KernelError, NotSupported, Rejected
from pointsman.kernel.command import CommandResult
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext, NodePortAddresses
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName


class IptablesHarness:
    """A backend, its tables, and the plans it was given."""

    def __init__(self, root: Path, *, localhost_node_ports: bool = True) -> None:
        self.tables = IptablesTables()
        for name, value in (
            ("ipv4/conf/all/route_localnet", "0"),
            ("netfilter/nf_conntrack_tcp_be_liberal", "0"),
        ):
            path = root / "proc/sys/net" / name
            path.parent.mkdir(parents=True)
            path.write_text(value)
        self.sysctls = Sysctls(root)
        self.counters: list[str] = []
        self.runner = Iptables(Family.IPV4, self.tables)
        self.plans: dict[ServicePortName, ServicePlan] = {}
        self.context = context()
        self.backend = self.new_backend(localhost_node_ports=localhost_node_ports)

    def new_backend(self, *, localhost_node_ports: bool = True) -> IptablesBackend:
        return IptablesBackend(
            Family.IPV4,
            runner=self.runner,
            sysctls=self.sysctls,
            ensure_counter=self.counters.append,
            has_counter=self.counters.__contains__,
            localhost_node_ports=localhost_node_ports,
        )

    def sync(self, *plans: ServicePlan, gone: Iterable[ServicePlan] = (), full: bool = False) -> SyncReport:
        changed: dict[ServicePortName, ServicePlan | None] = {one.name: one for one in plans}
        self.plans |= {one.name: one for one in plans}
        for one in gone:
            changed[one.name] = None
            self.plans.pop(one.name, None)
        return self.backend.sync(SyncRequest(self.context, self.plans, changed, full))

    def restart(self) -> None:
        self.backend = self.new_backend()

    def reject(self, *plans: ServicePlan) -> None:
        chains = [str(one.name) for one in plans]
        self.tables.refuses = lambda line: "DNAT" in line and any(chain in line for chain in chains)

    def held(self) -> object:
        return self.tables.tables

    def clean(self) -> list[CleanupItem]:
        cleaning = CleanupContext(self.sysctls, (Family.IPV4,))
        return list(cleanup([self.runner], cleaning, delete_counter=lambda name: False))

    def differences(self) -> list[str]:
        request = SyncRequest(self.context, self.plans, {}, True)
        return [
            f"{one.what}: {one.want} / {one.have}"
            for one in self.backend.prepare_comparison(request).differences()
        ]


class NoPrograms:
    """A host without iptables."""

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> CommandResult:
        raise NotSupported(f"{arguments[0]} is not installed")


@pytest.fixture
def harness(tmp_path: Path) -> IptablesHarness:
    return IptablesHarness(tmp_path)


def web(*addresses: str, **fields: Any) -> ServicePlan:
    return plan(service_port("web", **fields), *(endpoint(address) for address in addresses))


def db(*addresses: str, **fields: Any) -> ServicePlan:
    port = service_port("db", cluster_ip="10.96.0.20", port=5432, **fields)
    return plan(port, *(endpoint(address, 5432) for address in addresses))


def test_first_sync_is_full_and_complete(harness: IptablesHarness) -> None:
    report = harness.sync(web("10.244.1.1"))
    assert report.full
    assert harness.differences() == []
    assert len(harness.tables.restored) == 1


def test_second_sync_of_the_same_state_sends_nothing(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    report = harness.sync()
    assert (report.full, report.batch_bytes, report.rules_last) == (False, 0, {"filter": 0, "nat": 0})
    assert len(harness.tables.restored) == 1


def test_changed_endpoints_touch_only_the_chains_of_their_service(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"), db("10.244.1.9"))
    harness.sync(web("10.244.1.2", "10.244.1.3"))
    text = harness.tables.restored[-1]
    assert "*filter" not in text
    assert ":KUBE-SERVICES" not in text
    assert "default/db" not in text
    assert harness.differences() == []


def test_partial_sync_runs_one_program(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    before = len(harness.tables.calls)
    harness.sync(web("10.244.1.2"))
    assert [call[0] for call in harness.tables.calls[before:]] == ["iptables-restore"]


def test_chains_of_gone_endpoints_and_services_are_deleted_in_the_same_sync(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1", "10.244.1.2"), db("10.244.1.9"))
    harness.sync(web("10.244.1.2"), gone=[db()])
    own = [chain for chain in harness.tables.tables["nat"] if chain.startswith(("KUBE-SVC", "KUBE-SEP"))]
    assert len(own) == 2
    assert harness.differences() == []


def test_full_sync_deletes_stale_chains_of_an_earlier_process(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"), db("10.244.1.9"))
    del harness.plans[db().name]
    harness.backend = harness.new_backend()
    harness.sync()
    assert harness.differences() == []


def test_full_sync_does_not_repeat_jumps(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.sync(full=True)
    jumps = harness.tables.tables["nat"]["PREROUTING"]
    assert jumps == ['-m comment --comment "kubernetes service portals" -j KUBE-SERVICES']


def test_a_deleted_jump_comes_back_with_a_full_sync(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.tables.tables["nat"]["OUTPUT"].clear()
    assert len(harness.differences()) == 1
    harness.sync(full=True)
    assert harness.differences() == []


def test_a_new_context_makes_the_sync_full(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.context = context(masquerade_all=True)
    assert harness.sync().full
    assert harness.differences() == []


def test_loopback_is_routed_only_after_the_guard_is_in_place(harness: IptablesHarness) -> None:
    seen: list[str | None] = []
    harness.tables.before_restore = lambda text: seen.append(
        harness.sysctls.read("net/ipv4/conf/all/route_localnet")
    )
    harness.sync(web("10.244.1.1"))
    assert seen == ["0"]
    assert harness.sysctls.read("net/ipv4/conf/all/route_localnet") == "1"
    assert "127.0.0.0/8" in harness.tables.tables["filter"]["KUBE-FIREWALL"][0]


def test_loopback_is_not_routed_when_the_guard_was_refused(harness: IptablesHarness) -> None:
    harness.tables.before_restore = lambda text: CommandResult(1, b"", b"no memory\n")
    with pytest.raises(KernelError, match="no memory"):
        harness.sync(web("10.244.1.1"))
    assert harness.sysctls.read("net/ipv4/conf/all/route_localnet") == "0"


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (False, NodePortAddresses()),
        (True, NodePortAddresses(match_all=False, addresses=(b"\xac\x1e\0\n",), loopback=False)),
    ],
)
def test_loopback_is_never_routed_otherwise(tmp_path: Path, asked: bool, where: NodePortAddresses) -> None:
    harness = IptablesHarness(tmp_path, localhost_node_ports=asked)
    harness.context = context(node_port_addresses=where)
    harness.sync(web("10.244.1.1", node_port=30080))
    assert harness.sysctls.read("net/ipv4/conf/all/route_localnet") == "0"
    assert harness.tables.tables["filter"]["KUBE-FIREWALL"] == []


def test_a_kubelet_chain_that_is_not_ours_to_fill_is_not_flushed(tmp_path: Path) -> None:
    harness = IptablesHarness(tmp_path, localhost_node_ports=False)
    harness.tables.tables["filter"]["KUBE-FIREWALL"] = ["-m mark --mark 0x8000/0x8000 -j DROP"]
    harness.sync(web("10.244.1.1"))
    assert harness.tables.tables["filter"]["KUBE-FIREWALL"] == ["-m mark --mark 0x8000/0x8000 -j DROP"]


def test_a_failed_restore_loses_nothing(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.tables.before_restore = lambda text: CommandResult(-9)
    with pytest.raises(KernelError, match="killed by signal 9"):
        harness.sync(db("10.244.1.9"))
    harness.tables.before_restore = lambda text: None
    assert harness.sync().full
    assert harness.differences() == []


def test_a_held_lock_is_reported_as_busy(harness: IptablesHarness) -> None:
    text = b"Another app is currently holding the xtables lock. Stopped waiting after 5s.\n"
    harness.tables.before_restore = lambda _: CommandResult(4, b"", text)
    with pytest.raises(Busy, match="lock"):
        harness.sync(web("10.244.1.1"))


@pytest.mark.parametrize("full", [True, False])
def test_a_refused_service_port_is_left_out_and_the_others_are_served(
    harness: IptablesHarness, full: bool
) -> None:
    harness.sync()
    harness.tables.refuses = lambda line: "default/db" in line and "DNAT" in line
    report = harness.sync(web("10.244.1.1"), db("10.244.1.9"), full=full)
    assert list(report.rejected) == [db().name]
    assert "line" in report.rejected[db().name]
    assert harness.differences() == []
    assert not any("default/db" in rule for rules in harness.tables.tables["nat"].values() for rule in rules)


def test_culprits_are_found_when_only_the_commit_is_named(harness: IptablesHarness) -> None:
    harness.sync()

    def whole_table_fails(text: str) -> CommandResult | None:
        bad = "default/db:http -> " in text
        commits = [number for number, line in enumerate(text.splitlines(), 1) if line == "COMMIT"]
        return (
            CommandResult(1, b"", f"iptables-restore: line {commits[-1]} failed\n".encode()) if bad else None
        )

    harness.tables.before_restore = whole_table_fails
    report = harness.sync(web("10.244.1.1"), db("10.244.1.9"))
    assert list(report.rejected) == [db().name]
    harness.tables.before_restore = lambda text: None
    assert harness.differences() == []
    assert not any(chain.startswith("PTRY-") for table in harness.tables.tables.values() for chain in table)


def test_a_failure_that_no_service_explains_is_raised(harness: IptablesHarness) -> None:
    harness.tables.refuses = lambda line: "KUBE-POSTROUTING" in line
    with pytest.raises(KernelError, match="KUBE-POSTROUTING"):
        harness.sync(web("10.244.1.1"))


def test_counters_are_left_out_where_the_kernel_has_none(harness: IptablesHarness) -> None:
    def unsupported(name: str) -> None:
        raise NotSupported("no nfacct")

    harness.backend = IptablesBackend(
        Family.IPV4, runner=harness.runner, sysctls=harness.sysctls, ensure_counter=unsupported
    )
    harness.sync(web("10.244.1.1", node_port=30080))
    assert "nfacct" not in "".join(harness.tables.restored)
    assert any("INVALID" in rule for rule in harness.tables.tables["filter"]["KUBE-FORWARD"])


def test_comments_of_endpoints_go_above_a_thousand_endpoints_and_old_ones_stay(
    harness: IptablesHarness,
) -> None:
    harness.sync(db("10.244.1.9"))
    many = [f"10.244.{index // 200 + 2}.{index % 200 + 1}" for index in range(1000)]
    harness.sync(web(*many))
    nat = harness.tables.tables["nat"]
    rules = [rule for chain, rules in nat.items() if chain.startswith("KUBE-SEP") for rule in rules]
    assert sum("default/web" in rule for rule in rules) == 0
    assert sum("default/db" in rule for rule in rules) == 2
    assert harness.differences() == []
    harness.sync(full=True)
    nat = harness.tables.tables["nat"]
    rules = [rule for chain, rules in nat.items() if chain.startswith("KUBE-SEP") for rule in rules]
    assert not any("--comment" in rule for rule in rules)
    assert harness.differences() == []


def test_totals_count_all_rules_and_only_the_written_ones(harness: IptablesHarness) -> None:
    first = harness.sync(web("10.244.1.1"), db("10.244.1.9"))
    held = sum(
        len(rules)
        for chain, rules in harness.tables.tables["nat"].items()
        if chain.startswith("KUBE-") and chain != "KUBE-PROXY-CANARY"
    )
    assert first.rules_total["nat"] == held
    second = harness.sync(web("10.244.1.1", "10.244.1.2"))
    assert second.rules_total["nat"] == held + 3
    assert second.rules_last == {"filter": 0, "nat": 6}


def test_a_flush_is_noticed_and_repaired(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    assert harness.backend.find_drift() is None
    for table in harness.tables.tables.values():
        for chain in [chain for chain in table if chain.startswith("KUBE-")]:
            del table[chain]
        for rules in table.values():
            rules.clear()
    assert str(harness.backend.find_drift()).endswith("tables mangle, nat, filter: deleted")
    harness.sync(full=True)
    assert harness.backend.find_drift() is None
    assert harness.differences() == []


def test_a_look_that_nobody_lets_us_take_finds_nothing_intact(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.tables.can_list = False
    with pytest.raises(Busy, match="lock"):
        harness.backend.find_drift()


def test_a_changed_rule_is_found_by_verification_with_its_service(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    chain = next(chain for chain in harness.tables.tables["nat"] if chain.startswith("KUBE-SVC"))
    harness.tables.tables["nat"][chain].clear()
    found = harness.backend.prepare_comparison(
        SyncRequest(harness.context, harness.plans, {}, True)
    ).differences()
    assert [(one.what, one.owner, one.have) for one in found] == [(f"nat {chain}", web().name, "")]


def test_a_comparison_of_one_service_port_sees_its_damage_and_nothing_of_others(
    harness: IptablesHarness,
) -> None:
    harness.sync(web("10.244.1.1", node_port=30080), db("10.244.1.9", node_port=30081))
    request = SyncRequest(harness.context, harness.plans, {}, True)
    assert harness.backend.prepare_comparison(request, only=[web().name]).differences() == []
    rules = harness.tables.tables["nat"]["KUBE-SERVICES"]
    rules[:] = [rule for rule in rules if "default/web" not in rule]
    own, other = (
        harness.backend.prepare_comparison(request, only=[name]).differences()
        for name in (web().name, db().name)
    )
    assert [(one.what, one.owner) for one in own] == [("nat KUBE-SERVICES", web().name)]
    assert other == []


def test_a_comparison_gives_up_on_tables_that_never_hold_still(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.tables.save_seconds = 60.0
    with pytest.raises(KernelError, match="did not finish"):
        harness.differences()
    assert harness.sync(full=True).full


def test_verification_without_a_sync_before_compares_with_the_plans(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.backend = harness.new_backend()
    assert harness.differences() == []


def test_verification_creates_no_counters(harness: IptablesHarness) -> None:
    harness.plans = {web().name: web()}
    assert harness.differences()
    assert harness.counters == []
    assert harness.tables.restored == []


def test_when_saving_fails_jumps_are_asked_for_one_by_one(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.tables.can_save = False
    report = harness.sync(db("10.244.1.9"), full=True)
    harness.tables.can_save = True
    assert [condition.type for condition in report.conditions] == ["TablesReadable"]
    assert harness.differences() == []
    assert len(harness.tables.tables["nat"]["PREROUTING"]) == 1


def test_cleanup_leaves_only_what_others_made(harness: IptablesHarness) -> None:
    tables = harness.tables.tables
    tables["filter"]["INPUT"].append("-p tcp -m tcp --dport 22 -j ACCEPT")
    tables["nat"]["MINE"] = ["-j RETURN"]
    harness.sync(web("10.244.1.1", node_port=30080))
    harness.sysctls.undo()
    done = harness.clean()
    assert tables["filter"] == {"INPUT": ["-p tcp -m tcp --dport 22 -j ACCEPT"], "FORWARD": [], "OUTPUT": []}
    assert [chain for chain in tables["nat"] if chain.startswith("KUBE-")] == []
    assert tables["nat"]["MINE"] == ["-j RETURN"]
    assert harness.sysctls.read("net/ipv4/conf/all/route_localnet") == "0"
    assert [one.count for one in done if one.kind == "chains of services"] == [3]
    assert harness.clean() == []


def test_cleanup_skips_what_the_kernel_lacks_and_reports_any_other_obstacle(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.tables.can_save = False
    assert [(one.status, one.where) for one in harness.clean()] == [
        (CleanupStatus.FAILED, f"iptables table {table}") for table in ("mangle", "filter", "nat")
    ]
    harness.runner = Iptables(Family.IPV4, NoPrograms())
    assert harness.clean() == []


def test_cleanup_keeps_the_guard_while_loopback_is_routed(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.clean()
    filtering = harness.tables.tables["filter"]
    assert len(filtering["KUBE-FIREWALL"]) == 1
    assert filtering["INPUT"] == ["-j KUBE-FIREWALL"]


def test_cleanup_keeps_the_guard_on_a_host_with_a_kubelet(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.tables.tables["mangle"]["KUBE-KUBELET-CANARY"] = []
    harness.sysctls.undo()
    harness.clean()
    assert "KUBE-FIREWALL" in harness.tables.tables["filter"]


def test_cleanup_empties_and_keeps_a_chain_that_others_lead_to(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1"))
    harness.tables.tables["nat"]["MINE"] = ["-j KUBE-MARK-MASQ"]
    done = harness.clean()
    assert harness.tables.tables["nat"]["KUBE-MARK-MASQ"] == []
    assert [one.name for one in done if one.status is CleanupStatus.KEPT] == ["KUBE-MARK-MASQ"]


def test_a_node_context_with_addresses_ends_with_one_jump_per_address(harness: IptablesHarness) -> None:
    where = NodePortAddresses(match_all=False, addresses=(b"\x7f\0\0\1", b"\xac\x1e\0\n"))
    harness.context = NodeContext(Family.IPV4, "n1", node_port_addresses=where)
    harness.sync(web("10.244.1.1", node_port=30080))
    last = harness.tables.tables["nat"]["KUBE-SERVICES"][-2:]
    assert [rule.split()[1] for rule in last] == ["127.0.0.1/32", "172.30.0.10/32"]


def test_a_second_full_sync_writes_only_the_last_canary(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1", node_port=30080), db())
    report = harness.sync(full=True)
    assert harness.tables.restored[-1] == "*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n"
    assert report.rules_last == {"filter": 0, "nat": 0}
    assert harness.differences() == []


def test_a_full_sync_rewrites_what_was_tampered_with(harness: IptablesHarness) -> None:
    harness.sync(web("10.244.1.1", "10.244.1.2"), db("10.244.1.9"))
    nat = harness.tables.tables["nat"]
    chain = next(
        chain for chain, rules in nat.items() if chain.startswith("KUBE-SVC") and "web" in "".join(rules)
    )
    nat[chain].reverse()
    assert len(harness.differences()) == 1
    harness.sync(full=True)
    assert "default/db" not in harness.tables.restored[-1]
    assert harness.differences() == []


@pytest.mark.parametrize("damage", ["reverse", "clear", "double"])
def test_a_full_sync_repairs_shared_chains(harness: IptablesHarness, damage: str) -> None:
    harness.sync(web("10.244.1.1"), db())
    for table in ("nat", "filter"):
        rules = harness.tables.tables[table]["KUBE-SERVICES"]
        if damage == "reverse":
            rules.reverse()
        elif damage == "clear":
            rules.clear()
        else:
            rules += rules
    harness.sync(full=True)
    assert harness.differences() == []


@pytest.mark.parametrize(
    ("table", "chain"),
    [
        ("filter", "KUBE-FORWARD"),
        ("filter", "KUBE-FIREWALL"),
        ("filter", "KUBE-PROXY-CANARY"),
        ("nat", "KUBE-POSTROUTING"),
        ("nat", "KUBE-MARK-MASQ"),
        ("nat", "KUBE-PROXY-CANARY"),
    ],
)
@pytest.mark.parametrize("damage", ["reverse", "clear", "double"])
def test_a_full_sync_repairs_chains_outside_the_services(
    harness: IptablesHarness, table: str, chain: str, damage: str
) -> None:
    harness.sync(web("10.244.1.1"))
    rules = harness.tables.tables[table][chain]
    right = list(rules)
    rules[:] = {"reverse": right[::-1], "clear": [], "double": right * 2}[damage]
    harness.sync(full=True)
    assert harness.tables.tables[table][chain] == right
    assert "default/web" not in harness.tables.restored[-1]


@pytest.mark.parametrize("table", ["filter", "nat", "mangle"])
def test_a_full_sync_makes_missing_canaries_anew(harness: IptablesHarness, table: str) -> None:
    harness.sync(web("10.244.1.1"))
    del harness.tables.tables[table]["KUBE-PROXY-CANARY"]
    harness.sync(full=True)
    assert "KUBE-PROXY-CANARY" in harness.tables.tables[table]


def test_chains_are_declared_in_the_order_that_the_variant_takes_fastest(tmp_path: Path) -> None:
    declared = {}
    for variant in ("nf_tables", "legacy"):
        harness = IptablesHarness(tmp_path / variant)
        harness.tables.variant = variant
        harness.sync(web("10.244.1.1", "10.244.1.2"))
        nat = harness.tables.restored[0].partition("*nat\n")[2].partition("COMMIT\n")[0]
        declared[variant] = [line for line in nat.splitlines() if line.startswith(":")]
    assert declared["nf_tables"] == sorted(declared["nf_tables"])
    assert declared["legacy"] == declared["nf_tables"][::-1]


@pytest.mark.parametrize("full", [True, False])
def test_refused_service_ports_fail_the_sync_when_they_are_most(harness: IptablesHarness, full: bool) -> None:
    harness.sync(web("10.244.1.1"))
    before = copy.deepcopy(harness.tables.tables)
    harness.tables.refuses = lambda line: "DNAT" in line
    with pytest.raises(Rejected, match="2 of 2 service ports were rejected"):
        harness.sync(web("10.244.1.2"), db("10.244.1.9"), full=full)
    assert harness.tables.tables == before
    harness.tables.refuses = lambda line: False
    assert harness.sync().rejected == {}
    assert harness.differences() == []


def test_scratch_chains_of_a_killed_search_go_with_a_full_sync_and_with_clean_up(
    harness: IptablesHarness,
) -> None:
    def scratch() -> list[str]:
        return [
            chain for table in harness.tables.tables.values() for chain in table if chain.startswith("PTRY-")
        ]

    harness.sync(web("10.244.1.1"))
    left = b"*nat\n:PTRY-SVC-A - [0:0]\n:PTRY-SERVICES - [0:0]\n-A PTRY-SERVICES -j PTRY-SVC-A\nCOMMIT\n"
    for get_rid in (lambda: harness.sync(full=True), harness.clean):
        harness.runner.restore(left + left.replace(b"*nat", b"*filter"))
        assert len(scratch()) == 4
        get_rid()
        assert scratch() == []


@pytest.mark.parametrize("full", [True, False])
def test_others_can_be_deleted_while_one_stays_refused(harness: IptablesHarness, full: bool) -> None:
    harness.tables.refuses = lambda line: "10.244.1.9" in line and "DNAT" in line
    assert list(harness.sync(web("10.244.1.1"), db("10.244.1.9")).rejected) == [db().name]
    assert list(harness.sync(gone=[web()], full=full).rejected) == [db().name]
    assert not any("KUBE-SEP" in chain for chain in harness.tables.tables["nat"])
