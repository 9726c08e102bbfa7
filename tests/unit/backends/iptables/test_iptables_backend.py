"""The backend over tables in memory: what it sends, what it keeps, how it fails."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.factory import context, endpoint, impossible, plan, service_port
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


class Bench:
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

    def clean(self) -> list[CleanupItem]:
        cleaning = CleanupContext(self.sysctls, (Family.IPV4,))
        return list(cleanup([self.runner], cleaning, delete_counter=lambda name: False))

    def differences(self) -> list[str]:
        request = SyncRequest(self.context, self.plans, {}, True)
        return [
            f"{one.what}: {one.want} / {one.have}" for one in self.backend.comparison(request).differences()
        ]


class NoPrograms:
    """A host without iptables."""

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> CommandResult:
        raise NotSupported(f"{arguments[0]} is not installed")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def web(*addresses: str, **fields: Any) -> ServicePlan:
    return plan(service_port("web", **fields), *(endpoint(address) for address in addresses))


def db(*addresses: str, **fields: Any) -> ServicePlan:
    port = service_port("db", cluster_ip="10.96.0.20", port=5432, **fields)
    return plan(port, *(endpoint(address, 5432) for address in addresses))


def test_first_sync_is_full_and_complete(bench: Bench) -> None:
    report = bench.sync(web("10.244.1.1"))
    assert report.full
    assert bench.differences() == []
    assert len(bench.tables.restored) == 1


def test_second_sync_of_the_same_state_sends_nothing(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    report = bench.sync()
    assert (report.full, report.batch_bytes, report.rules_last) == (False, 0, {"filter": 0, "nat": 0})
    assert len(bench.tables.restored) == 1


def test_changed_endpoints_touch_only_the_chains_of_their_service(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"), db("10.244.1.9"))
    bench.sync(web("10.244.1.2", "10.244.1.3"))
    text = bench.tables.restored[-1]
    assert "*filter" not in text
    assert ":KUBE-SERVICES" not in text
    assert "default/db" not in text
    assert bench.differences() == []


def test_partial_sync_runs_one_program(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    before = len(bench.tables.calls)
    bench.sync(web("10.244.1.2"))
    assert [call[0] for call in bench.tables.calls[before:]] == ["iptables-restore"]


def test_chains_of_gone_endpoints_and_services_are_deleted_in_the_same_sync(bench: Bench) -> None:
    bench.sync(web("10.244.1.1", "10.244.1.2"), db("10.244.1.9"))
    bench.sync(web("10.244.1.2"), gone=[db()])
    own = [chain for chain in bench.tables.tables["nat"] if chain.startswith(("KUBE-SVC", "KUBE-SEP"))]
    assert len(own) == 2
    assert bench.differences() == []


def test_full_sync_deletes_stale_chains_of_an_earlier_process(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"), db("10.244.1.9"))
    del bench.plans[db().name]
    bench.backend = bench.new_backend()
    bench.sync()
    assert bench.differences() == []


def test_full_sync_does_not_repeat_jumps(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.sync(full=True)
    jumps = bench.tables.tables["nat"]["PREROUTING"]
    assert jumps == ['-m comment --comment "kubernetes service portals" -j KUBE-SERVICES']


def test_a_deleted_jump_comes_back_with_a_full_sync(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.tables.tables["nat"]["OUTPUT"].clear()
    assert len(bench.differences()) == 1
    bench.sync(full=True)
    assert bench.differences() == []


def test_a_new_context_makes_the_sync_full(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.context = context(masquerade_all=True)
    assert bench.sync().full
    assert bench.differences() == []


def test_loopback_is_routed_only_after_the_guard_is_in_place(bench: Bench) -> None:
    seen: list[str | None] = []
    bench.tables.before_restore = lambda text: seen.append(
        bench.sysctls.read("net/ipv4/conf/all/route_localnet")
    )
    bench.sync(web("10.244.1.1"))
    assert seen == ["0"]
    assert bench.sysctls.read("net/ipv4/conf/all/route_localnet") == "1"
    assert "127.0.0.0/8" in bench.tables.tables["filter"]["KUBE-FIREWALL"][0]


def test_loopback_is_not_routed_when_the_guard_was_refused(bench: Bench) -> None:
    bench.tables.before_restore = lambda text: CommandResult(1, b"", b"no memory\n")
    with pytest.raises(KernelError, match="no memory"):
        bench.sync(web("10.244.1.1"))
    assert bench.sysctls.read("net/ipv4/conf/all/route_localnet") == "0"


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (False, NodePortAddresses()),
        (True, NodePortAddresses(match_all=False, addresses=(b"\xac\x1e\0\n",), loopback=False)),
    ],
)
def test_loopback_is_never_routed_otherwise(tmp_path: Path, asked: bool, where: NodePortAddresses) -> None:
    bench = Bench(tmp_path, localhost_node_ports=asked)
    bench.context = context(node_port_addresses=where)
    bench.sync(web("10.244.1.1", node_port=30080))
    assert bench.sysctls.read("net/ipv4/conf/all/route_localnet") == "0"
    assert bench.tables.tables["filter"]["KUBE-FIREWALL"] == []


def test_a_kubelet_chain_that_is_not_ours_to_fill_is_not_flushed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, localhost_node_ports=False)
    bench.tables.tables["filter"]["KUBE-FIREWALL"] = ["-m mark --mark 0x8000/0x8000 -j DROP"]
    bench.sync(web("10.244.1.1"))
    assert bench.tables.tables["filter"]["KUBE-FIREWALL"] == ["-m mark --mark 0x8000/0x8000 -j DROP"]


def test_a_failed_restore_loses_nothing(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.tables.before_restore = lambda text: CommandResult(-9)
    with pytest.raises(KernelError, match="killed by signal 9"):
        bench.sync(db("10.244.1.9"))
    bench.tables.before_restore = lambda text: None
    assert bench.sync().full
    assert bench.differences() == []


def test_a_held_lock_is_reported_as_busy(bench: Bench) -> None:
    text = b"Another app is currently holding the xtables lock. Stopped waiting after 5s.\n"
    bench.tables.before_restore = lambda _: CommandResult(4, b"", text)
    with pytest.raises(Busy, match="lock"):
        bench.sync(web("10.244.1.1"))


@pytest.mark.parametrize("full", [True, False])
def test_a_refused_service_port_is_left_out_and_the_others_are_served(bench: Bench, full: bool) -> None:
    bench.sync()
    bench.tables.refuses = lambda line: "default/db" in line and "DNAT" in line
    report = bench.sync(web("10.244.1.1"), db("10.244.1.9"), full=full)
    assert list(report.rejected) == [db().name]
    assert "line" in report.rejected[db().name]
    assert bench.differences() == []
    assert not any("default/db" in rule for rules in bench.tables.tables["nat"].values() for rule in rules)


def test_a_refused_service_port_stays_reported_until_it_changes(bench: Bench) -> None:
    bench.sync(web("10.244.1.2"))
    bench.tables.refuses = lambda line: "default/db" in line
    bench.sync(db("10.244.1.9"))
    assert list(bench.sync(web("10.244.1.1")).rejected) == [db().name]
    bench.tables.refuses = lambda line: False
    assert bench.sync(db("10.244.1.8")).rejected == {}
    assert bench.differences() == []


def test_culprits_are_found_when_only_the_commit_is_named(bench: Bench) -> None:
    bench.sync()

    def whole_table_fails(text: str) -> CommandResult | None:
        bad = "default/db:http -> " in text
        commits = [number for number, line in enumerate(text.splitlines(), 1) if line == "COMMIT"]
        return (
            CommandResult(1, b"", f"iptables-restore: line {commits[-1]} failed\n".encode()) if bad else None
        )

    bench.tables.before_restore = whole_table_fails
    report = bench.sync(web("10.244.1.1"), db("10.244.1.9"))
    assert list(report.rejected) == [db().name]
    bench.tables.before_restore = lambda text: None
    assert bench.differences() == []
    assert not any(chain.startswith("PTRY-") for table in bench.tables.tables.values() for chain in table)


def test_a_failure_that_no_service_explains_is_raised(bench: Bench) -> None:
    bench.tables.refuses = lambda line: "KUBE-POSTROUTING" in line
    with pytest.raises(KernelError, match="KUBE-POSTROUTING"):
        bench.sync(web("10.244.1.1"))


def test_counters_are_left_out_where_the_kernel_has_none(bench: Bench) -> None:
    def unsupported(name: str) -> None:
        raise NotSupported("no nfacct")

    bench.backend = IptablesBackend(
        Family.IPV4, runner=bench.runner, sysctls=bench.sysctls, ensure_counter=unsupported
    )
    bench.sync(web("10.244.1.1", node_port=30080))
    assert "nfacct" not in "".join(bench.tables.restored)
    assert any("INVALID" in rule for rule in bench.tables.tables["filter"]["KUBE-FORWARD"])


def test_comments_of_endpoints_go_above_a_thousand_endpoints_and_old_ones_stay(bench: Bench) -> None:
    bench.sync(db("10.244.1.9"))
    many = [f"10.244.{index // 200 + 2}.{index % 200 + 1}" for index in range(1000)]
    bench.sync(web(*many))
    nat = bench.tables.tables["nat"]
    rules = [rule for chain, rules in nat.items() if chain.startswith("KUBE-SEP") for rule in rules]
    assert sum("default/web" in rule for rule in rules) == 0
    assert sum("default/db" in rule for rule in rules) == 2
    assert bench.differences() == []
    bench.sync(full=True)
    nat = bench.tables.tables["nat"]
    rules = [rule for chain, rules in nat.items() if chain.startswith("KUBE-SEP") for rule in rules]
    assert not any("--comment" in rule for rule in rules)
    assert bench.differences() == []


def test_totals_count_all_rules_and_only_the_written_ones(bench: Bench) -> None:
    first = bench.sync(web("10.244.1.1"), db("10.244.1.9"))
    held = sum(
        len(rules)
        for chain, rules in bench.tables.tables["nat"].items()
        if chain.startswith("KUBE-") and chain != "KUBE-PROXY-CANARY"
    )
    assert first.rules_total["nat"] == held
    second = bench.sync(web("10.244.1.1", "10.244.1.2"))
    assert second.rules_total["nat"] == held + 3
    assert second.rules_last == {"filter": 0, "nat": 6}


def test_a_flush_is_noticed_and_repaired(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    assert bench.backend.drift() is None
    for table in bench.tables.tables.values():
        for chain in [chain for chain in table if chain.startswith("KUBE-")]:
            del table[chain]
        for rules in table.values():
            rules.clear()
    assert str(bench.backend.drift()).endswith("tables mangle, nat, filter: deleted")
    bench.sync(full=True)
    assert bench.backend.drift() is None
    assert bench.differences() == []


def test_a_look_that_nobody_lets_us_take_finds_nothing_intact(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.tables.can_list = False
    with pytest.raises(Busy, match="lock"):
        bench.backend.drift()


def test_a_changed_rule_is_found_by_verification_with_its_service(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    chain = next(chain for chain in bench.tables.tables["nat"] if chain.startswith("KUBE-SVC"))
    bench.tables.tables["nat"][chain].clear()
    found = bench.backend.comparison(SyncRequest(bench.context, bench.plans, {}, True)).differences()
    assert [(one.what, one.owner, one.have) for one in found] == [(f"nat {chain}", web().name, "")]


def test_a_comparison_of_one_service_port_sees_its_damage_and_nothing_of_others(bench: Bench) -> None:
    bench.sync(web("10.244.1.1", node_port=30080), db("10.244.1.9", node_port=30081))
    request = SyncRequest(bench.context, bench.plans, {}, True)
    assert bench.backend.comparison(request, only=[web().name]).differences() == []
    rules = bench.tables.tables["nat"]["KUBE-SERVICES"]
    rules[:] = [rule for rule in rules if "default/web" not in rule]
    own, other = (
        bench.backend.comparison(request, only=[name]).differences() for name in (web().name, db().name)
    )
    assert [(one.what, one.owner) for one in own] == [("nat KUBE-SERVICES", web().name)]
    assert other == []


def test_a_comparison_gives_up_on_tables_that_never_hold_still(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.tables.save_seconds = 60.0
    with pytest.raises(KernelError, match="did not finish"):
        bench.differences()
    assert bench.sync(full=True).full


def test_verification_without_a_sync_before_compares_with_the_plans(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.backend = bench.new_backend()
    assert bench.differences() == []


def test_verification_creates_no_counters(bench: Bench) -> None:
    bench.plans = {web().name: web()}
    assert bench.differences()
    assert bench.counters == []
    assert bench.tables.restored == []


def test_when_saving_fails_jumps_are_asked_for_one_by_one(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.tables.can_save = False
    report = bench.sync(db("10.244.1.9"), full=True)
    bench.tables.can_save = True
    assert any("stale chains are not deleted" in note for note in report.notes)
    assert bench.differences() == []
    assert len(bench.tables.tables["nat"]["PREROUTING"]) == 1


def test_cleanup_leaves_only_what_others_made(bench: Bench) -> None:
    tables = bench.tables.tables
    tables["filter"]["INPUT"].append("-p tcp -m tcp --dport 22 -j ACCEPT")
    tables["nat"]["MINE"] = ["-j RETURN"]
    bench.sync(web("10.244.1.1", node_port=30080))
    bench.sysctls.undo()
    done = bench.clean()
    assert tables["filter"] == {"INPUT": ["-p tcp -m tcp --dport 22 -j ACCEPT"], "FORWARD": [], "OUTPUT": []}
    assert [chain for chain in tables["nat"] if chain.startswith("KUBE-")] == []
    assert tables["nat"]["MINE"] == ["-j RETURN"]
    assert bench.sysctls.read("net/ipv4/conf/all/route_localnet") == "0"
    assert [one.count for one in done if one.kind == "chains of services"] == [3]
    assert bench.clean() == []


def test_cleanup_skips_what_the_kernel_lacks_and_reports_any_other_obstacle(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.tables.can_save = False
    assert [(one.status, one.where) for one in bench.clean()] == [
        (CleanupStatus.FAILED, f"iptables table {table}") for table in ("mangle", "filter", "nat")
    ]
    bench.runner = Iptables(Family.IPV4, NoPrograms())
    assert bench.clean() == []


def test_cleanup_keeps_the_guard_while_loopback_is_routed(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.clean()
    filtering = bench.tables.tables["filter"]
    assert len(filtering["KUBE-FIREWALL"]) == 1
    assert filtering["INPUT"] == ["-j KUBE-FIREWALL"]


def test_cleanup_keeps_the_guard_on_a_host_with_a_kubelet(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.tables.tables["mangle"]["KUBE-KUBELET-CANARY"] = []
    bench.sysctls.undo()
    bench.clean()
    assert "KUBE-FIREWALL" in bench.tables.tables["filter"]


def test_cleanup_empties_and_keeps_a_chain_that_others_lead_to(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.tables.tables["nat"]["MINE"] = ["-j KUBE-MARK-MASQ"]
    done = bench.clean()
    assert bench.tables.tables["nat"]["KUBE-MARK-MASQ"] == []
    assert [one.name for one in done if one.status is CleanupStatus.KEPT] == ["KUBE-MARK-MASQ"]


def test_a_node_context_with_addresses_ends_with_one_jump_per_address(bench: Bench) -> None:
    where = NodePortAddresses(match_all=False, addresses=(b"\x7f\0\0\1", b"\xac\x1e\0\n"))
    bench.context = NodeContext(Family.IPV4, "n1", node_port_addresses=where)
    bench.sync(web("10.244.1.1", node_port=30080))
    last = bench.tables.tables["nat"]["KUBE-SERVICES"][-2:]
    assert [rule.split()[1] for rule in last] == ["127.0.0.1/32", "172.30.0.10/32"]


def test_a_second_full_sync_writes_only_the_last_canary(bench: Bench) -> None:
    bench.sync(web("10.244.1.1", node_port=30080), db())
    report = bench.sync(full=True)
    assert bench.tables.restored[-1] == "*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n"
    assert report.rules_last == {"filter": 0, "nat": 0}
    assert bench.differences() == []


def test_a_full_sync_rewrites_what_was_tampered_with(bench: Bench) -> None:
    bench.sync(web("10.244.1.1", "10.244.1.2"), db("10.244.1.9"))
    nat = bench.tables.tables["nat"]
    chain = next(
        chain for chain, rules in nat.items() if chain.startswith("KUBE-SVC") and "web" in "".join(rules)
    )
    nat[chain].reverse()
    assert len(bench.differences()) == 1
    bench.sync(full=True)
    assert "default/db" not in bench.tables.restored[-1]
    assert bench.differences() == []


@pytest.mark.parametrize("damage", ["reverse", "clear", "double"])
def test_a_full_sync_repairs_shared_chains(bench: Bench, damage: str) -> None:
    bench.sync(web("10.244.1.1"), db())
    for table in ("nat", "filter"):
        rules = bench.tables.tables[table]["KUBE-SERVICES"]
        if damage == "reverse":
            rules.reverse()
        elif damage == "clear":
            rules.clear()
        else:
            rules += rules
    bench.sync(full=True)
    assert bench.differences() == []


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
    bench: Bench, table: str, chain: str, damage: str
) -> None:
    bench.sync(web("10.244.1.1"))
    rules = bench.tables.tables[table][chain]
    right = list(rules)
    rules[:] = {"reverse": right[::-1], "clear": [], "double": right * 2}[damage]
    bench.sync(full=True)
    assert bench.tables.tables[table][chain] == right
    assert "default/web" not in bench.tables.restored[-1]


@pytest.mark.parametrize("table", ["filter", "nat", "mangle"])
def test_a_full_sync_makes_missing_canaries_anew(bench: Bench, table: str) -> None:
    bench.sync(web("10.244.1.1"))
    del bench.tables.tables[table]["KUBE-PROXY-CANARY"]
    bench.sync(full=True)
    assert "KUBE-PROXY-CANARY" in bench.tables.tables[table]


def test_chains_are_declared_in_the_order_that_the_variant_takes_fastest(tmp_path: Path) -> None:
    declared = {}
    for variant in ("nf_tables", "legacy"):
        bench = Bench(tmp_path / variant)
        bench.tables.variant = variant
        bench.sync(web("10.244.1.1", "10.244.1.2"))
        nat = bench.tables.restored[0].partition("*nat\n")[2].partition("COMMIT\n")[0]
        declared[variant] = [line for line in nat.splitlines() if line.startswith(":")]
    assert declared["nf_tables"] == sorted(declared["nf_tables"])
    assert declared["legacy"] == declared["nf_tables"][::-1]


@pytest.mark.parametrize("full", [True, False])
def test_a_plan_that_cannot_be_compiled_harms_only_itself(bench: Bench, full: bool) -> None:
    bench.sync()
    broken = impossible()
    report = bench.sync(web("10.244.1.1"), broken, full=full)
    assert list(report.rejected) == [broken.name]
    assert report.rejected[broken.name].startswith("cannot be compiled: AddressValueError")
    assert bench.differences() == []
    assert any("default/web" in rule for rules in bench.tables.tables["nat"].values() for rule in rules)


@pytest.mark.parametrize("restarted", [True, False])
def test_plans_that_cannot_be_compiled_fail_the_sync_when_they_are_most_and_take_nothing_away(
    bench: Bench, restarted: bool
) -> None:
    bench.sync(web("10.244.1.1"), db("10.244.1.9"))
    before = copy.deepcopy(bench.tables.tables)
    if restarted:
        bench.backend = bench.new_backend()
    with pytest.raises(Rejected, match="2 of 2 service ports were rejected"):
        bench.sync(impossible("web", "10.96.0.10"), impossible("db", "10.96.0.20"))
    assert bench.tables.tables == before


@pytest.mark.parametrize("full", [True, False])
def test_refused_service_ports_fail_the_sync_when_they_are_most(bench: Bench, full: bool) -> None:
    bench.sync(web("10.244.1.1"))
    before = copy.deepcopy(bench.tables.tables)
    bench.tables.refuses = lambda line: "DNAT" in line
    with pytest.raises(Rejected, match="2 of 2 service ports were rejected"):
        bench.sync(web("10.244.1.2"), db("10.244.1.9"), full=full)
    assert bench.tables.tables == before
    bench.tables.refuses = lambda line: False
    assert bench.sync().rejected == {}
    assert bench.differences() == []


def test_refused_service_ports_add_up_over_several_syncs(bench: Bench) -> None:
    bench.sync(web("10.244.1.1"))
    bench.tables.refuses = lambda line: "DNAT" in line
    bench.sync(db("10.244.1.9"))
    with pytest.raises(Rejected, match="2 of 2 service ports were rejected"):
        bench.sync(web("10.244.1.2"))


def test_scratch_chains_of_a_killed_search_go_with_a_full_sync_and_with_clean_up(bench: Bench) -> None:
    def scratch() -> list[str]:
        return [
            chain for table in bench.tables.tables.values() for chain in table if chain.startswith("PTRY-")
        ]

    bench.sync(web("10.244.1.1"))
    left = b"*nat\n:PTRY-SVC-A - [0:0]\n:PTRY-SERVICES - [0:0]\n-A PTRY-SERVICES -j PTRY-SVC-A\nCOMMIT\n"
    for get_rid in (lambda: bench.sync(full=True), bench.clean):
        bench.runner.restore(left + left.replace(b"*nat", b"*filter"))
        assert len(scratch()) == 4
        get_rid()
        assert scratch() == []


@pytest.mark.parametrize("full", [True, False])
def test_others_can_be_deleted_while_one_stays_refused(bench: Bench, full: bool) -> None:
    bench.tables.refuses = lambda line: "10.244.1.9" in line and "DNAT" in line
    assert list(bench.sync(web("10.244.1.1"), db("10.244.1.9")).rejected) == [db().name]
    assert list(bench.sync(gone=[web()], full=full).rejected) == [db().name]
    assert not any("KUBE-SEP" in chain for chain in bench.tables.tables["nat"])
