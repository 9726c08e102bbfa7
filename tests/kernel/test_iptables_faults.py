"""iptables mode on a real kernel when things go wrong: nothing is lost, others are served, repairs are complete."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.factory import context, endpoint, plan, service_port
from tests.golden import compare_iptables
from tests.golden import scenario as scenarios
from tests.golden.recorded_node import recorded_node

from pointsman.backends.contract import CleanupContext, Difference, SyncReport, SyncRequest
from pointsman.backends.iptables.apply import ROUTE_LOCALNET, IptablesBackend
from pointsman.backends.iptables.cleanup import cleanup
from pointsman.backends.iptables.static import INVALID_COUNTER, LOCALHOST_COUNTER
from pointsman.backends.netfilter.names import MANGLE, NAT
from pointsman.backends.netfilter.runners import find_nft_ruleset
from pointsman.errors import Busy, KernelError
from pointsman.kernel import nfacct
from pointsman.kernel.command import CommandResult, SystemCommands
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.iptables_programs import NFT, choose_variant
from pointsman.kernel.sysctl import Sysctls
from pointsman.kernel.xtables_lock import LockNotOpened
from pointsman.model.addresses import Family, cidr_from_text
from pointsman.model.balancing import BalancingRequest
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName

pytestmark = pytest.mark.kernel


class Host:
    """The tools in a fresh namespace, with a place to interfere before each restore."""

    def __init__(self, variant: str, lock_file: Path, journal: Path) -> None:
        self.variant = variant
        self.lock_file = lock_file
        self.interfere: Callable[[Sequence[str], bytes], CommandResult | bytes] = lambda arguments, text: text
        self.commands: list[str] = []
        self.impatient = False
        """Wait for the lock one second at most."""
        self._system = SystemCommands()
        self.runner = Iptables(Family.IPV4, self, variant=variant, lock_file=lock_file)
        self.sysctls = Sysctls(journal=journal)
        self.backend = self.new_backend()
        self.plans: dict[ServicePortName, ServicePlan] = {}

    def new_backend(self, ensure_counter: Callable[[str], None] = nfacct.ensure) -> IptablesBackend:
        return IptablesBackend(
            Family.IPV4,
            runner=self.runner,
            sysctls=self.sysctls,
            ensure_counter=ensure_counter,
            ruleset=find_nft_ruleset(self.runner),
        )

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> CommandResult:
        self.commands.append(arguments[0])
        if arguments[0].endswith("-restore") and stdin:
            answer = self.interfere(arguments, stdin)
            if isinstance(answer, CommandResult):
                return answer
            stdin = answer
        if self.impatient and "-w" in arguments:
            at = arguments.index("-w") + 1
            arguments = (*arguments[:at], "1", *arguments[at + 1 :])
        return self._system.run(arguments, stdin=stdin, timeout=timeout)

    def sync(self, *plans: ServicePlan, full: bool = False) -> SyncReport:
        self.plans |= {one.name: one for one in plans}
        return self.backend.sync(SyncRequest(context(), self.plans, {one.name: one for one in plans}, full))

    def differences(self) -> list[object]:
        return list(
            self.backend.prepare_comparison(SyncRequest(context(), self.plans, {}, True)).differences()
        )

    def iptables(self, *arguments: str) -> None:
        """What somebody else on the host does."""
        subprocess.run([f"iptables-{self.variant}", "-w", "5", *arguments], check=True)

    def saved(self) -> str:
        return subprocess.run(
            [f"iptables-{self.variant}-save"], capture_output=True, text=True, check=True
        ).stdout


@pytest.fixture(params=["nft", "legacy"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    lock_file = tmp_path / "xtables.lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock_file))
    with recorded_node():
        yield Host(request.param, lock_file, tmp_path / "journal.json")


def web(*addresses: str, **fields: Any) -> ServicePlan:
    return plan(service_port("web", **fields), *(endpoint(address) for address in addresses))


def db(*addresses: str, **fields: Any) -> ServicePlan:
    port = service_port("db", cluster_ip="10.96.0.20", port=5432, **fields)
    return plan(port, *(endpoint(address, 5432) for address in addresses))


@pytest.mark.parametrize("full", [True, False])
def test_a_bad_line_costs_only_the_service_it_belongs_to(host: Host, full: bool) -> None:
    host.sync()
    good, bad = b"--to-destination 10.244.1.9:5432", b"--to-nowhere"
    host.interfere = lambda _, text: text.replace(good, bad)
    report = host.sync(web("10.244.1.1"), db("10.244.1.9"), full=full)
    assert list(report.rejected) == [db().name]
    assert "--to-nowhere" in report.rejected[db().name]
    assert host.differences() == []
    host.interfere = lambda _, text: text
    assert host.sync(full=True).rejected == {}
    assert host.differences() == []


def test_a_lock_file_that_cannot_be_opened_is_named_before_anything_is_written(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container with a read-only root and no mount of it; the nft variant needs no lock."""
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "nowhere" / "xtables.lock"))
    runner = Iptables(Family.IPV4, SystemCommands(), variant=host.variant)
    if host.variant == NFT:
        assert runner.find_obstacle() is None
    else:
        with pytest.raises(
            LockNotOpened, match="No such file or directory; in a container, mount the host's"
        ):
            runner.find_obstacle()


def test_rules_of_resets_and_guarded_node_ports_read_back_as_they_were_written(host: Host) -> None:
    resetting = BalancingRequest(reset_gone=True)
    guarded = (cidr_from_text("192.0.2.0/24"),)
    host.sync(
        plan(service_port("empty", node_port=30001, balancing=resetting)),
        plan(
            service_port("elsewhere", port=81, node_port=30002, external_local=True, balancing=resetting),
            endpoint("10.244.1.1", local=False),
        ),
        plan(
            service_port("guarded", port=82, node_port=30003, source_ranges=guarded, ranges_everywhere=True),
            endpoint("10.244.1.1"),
        ),
        full=True,
    )
    saved = host.saved()
    assert saved.count("tcp-reset") == 3
    assert "--dport 30003 -j DROP" in saved
    assert host.differences() == []


def test_rules_that_only_the_kernel_refuses_are_isolated(host: Host) -> None:
    def half_of_the_counters(name: str) -> None:
        if name == INVALID_COUNTER:
            nfacct.ensure(name)

    host.backend = host.new_backend(half_of_the_counters)
    report = host.sync(
        web("10.244.1.1"), db("10.244.1.9", node_port=30432), *(_numbered(index) for index in range(10))
    )
    assert list(report.rejected) == [db().name]
    assert host.differences() == []
    assert "PTRY-" not in host.saved()


def _numbered(index: int) -> ServicePlan:
    port = service_port(f"svc-{index}", cluster_ip=f"10.96.1.{index + 1}")
    return plan(port, endpoint(f"10.244.3.{index + 1}"))


@pytest.mark.parametrize("full", [True, False])
def test_a_killed_restore_loses_nothing(host: Host, full: bool) -> None:
    host.sync(web("10.244.1.1"))

    def killed_midway(arguments: Sequence[str], text: bytes) -> CommandResult:
        with subprocess.Popen(list(arguments), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdin is not None
            process.stdin.write(text[: len(text) // 2])
            process.stdin.flush()
            process.kill()
            process.wait()
            return CommandResult(process.returncode)

    host.interfere = killed_midway
    with pytest.raises(KernelError, match="killed by signal 9"):
        host.sync(web("10.244.1.2"), db("10.244.1.9"), full=full)
    host.interfere = lambda _, text: text
    assert host.sync().full
    assert host.differences() == []


def test_a_held_lock_delays_and_names_its_holder(host: Host) -> None:
    if host.variant == "nft":
        pytest.skip("the nft variant takes no lock")
    host.sync(web("10.244.1.1"))
    host.impatient = True
    with host.lock_file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(Busy, match=r"is held by .*\(pid \d+\)"):
            host.sync(db("10.244.1.9"))
        assert host.backend.find_drift() is None
        with pytest.raises(Busy):
            host.runner.has_chain(MANGLE, "KUBE-PROXY-CANARY")
    assert host.sync().full
    assert host.differences() == []


def test_no_flush_is_reported_while_the_lock_is_held(host: Host) -> None:
    if host.variant == "nft":
        pytest.skip("the nft variant takes no lock")
    host.sync(web("10.244.1.1"))
    host.impatient = True
    with host.lock_file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(Busy):
            host.backend.find_drift()
    assert host.backend.find_drift() is None


@pytest.mark.parametrize("operations", [("-F", "-X"), ("-F",)])
@pytest.mark.parametrize("tables", [("filter", "nat", "mangle"), ("nat",), ("filter",)])
def test_a_flush_by_others_is_noticed_and_repaired(
    host: Host, tables: tuple[str, ...], operations: tuple[str, ...]
) -> None:
    host.sync(web("10.244.1.1"), db("10.244.1.9"))
    assert host.backend.find_drift() is None
    before = host.saved()
    for operation in operations:
        for table in tables:
            host.iptables("-t", table, operation)
    assert host.differences()
    report = host.backend.find_drift()
    assert report is not None
    assert tables[0] in report.what
    host.sync(full=True)
    assert host.backend.find_drift() is None
    assert host.differences() == []
    assert compare_iptables.differences(before, host.saved()) == []


_PORTALS = ("-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES")
DAMAGE = {
    "flushed chain": ("-t", "nat", "-F", "KUBE-SERVICES"),
    "flushed chain of filter": ("-F", "KUBE-FORWARD"),
    "replaced rule": ("-t", "nat", "-R", "KUBE-POSTROUTING", "1", "-j", "RETURN"),
    "added rule": ("-t", "nat", "-I", "KUBE-SERVICES", "-d", "10.96.0.10/32", "-j", "RETURN"),
    "rule after the last": ("-t", "nat", "-A", "KUBE-SERVICES", "-j", "RETURN"),
    "deleted jump": ("-t", "nat", "-D", "PREROUTING", *_PORTALS),
    "narrowed jump": ("-t", "nat", "-R", "PREROUTING", "1", "-s", "192.0.2.1/32", *_PORTALS),
    "deleted guard": ("-F", "KUBE-FIREWALL"),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_what_no_canary_tells_is_found_by_comparing_and_repaired(host: Host, damage: str) -> None:
    host.sync(web("10.244.1.1"), db("10.244.1.9"))
    before = host.saved()
    assert host.differences() == []
    host.iptables(*DAMAGE[damage])
    assert host.backend.find_drift() is None
    assert host.differences()
    host.sync(full=True)
    assert host.differences() == []
    if damage != "narrowed jump":  # which stays, beside ours, as a rule of somebody else
        assert compare_iptables.differences(before, host.saved()) == []


@pytest.mark.parametrize("table", ["nat", "filter"])
def test_a_table_that_others_put_to_sleep_is_noticed_shown_and_woken(host: Host, table: str) -> None:
    if host.variant != "nft":
        pytest.skip("tables of legacy iptables cannot sleep")
    host.sync(web("10.244.1.1"), db("10.244.1.9"))
    assert host.backend.find_drift() is None
    subprocess.run(["nft", "add", "table", "ip", table, "{ flags dormant ; }"], check=True)
    found = host.backend.find_drift()
    assert str(found) == f"table ip {table}: changed (dormant instead of active)"
    assert host.differences() == [Difference(f"table ip {table}", "active", "dormant")]
    assert host.sync(full=True).corrected == [found]
    assert (host.backend.find_drift(), host.differences()) == (None, [])
    listed = subprocess.run(["nft", "list", "table", "ip", table], capture_output=True, text=True, check=True)
    assert "dormant" not in listed.stdout


def test_what_was_found_in_order_is_read_again_only_after_a_change_where_changes_are_counted(
    host: Host,
) -> None:
    host.sync(web("10.244.1.1"))
    host.differences()
    host.commands.clear()
    host.differences()
    assert host.commands == ([] if host.variant == "nft" else ["iptables-legacy-save"] * 2)
    host.iptables("-t", "nat", "-N", "MINE")
    host.differences()
    assert host.commands[-2:] == [f"iptables-{host.variant}-save"] * 2
    host.commands.clear()
    host.plans[db().name] = db("10.244.1.9")
    assert host.differences()
    assert host.commands


def test_what_a_kubelet_puts_into_its_chain_is_no_difference(host: Host) -> None:
    host.sync(web("10.244.1.1"))
    host.iptables("-A", "KUBE-FIREWALL", "-m", "mark", "--mark", "0x8000/0x8000", "-j", "DROP")
    assert host.differences() == []


def test_rules_of_others_survive_every_sync(host: Host) -> None:
    host.iptables("-t", "nat", "-N", "MINE")
    host.iptables("-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "22", "-j", "MINE")
    host.iptables("-I", "INPUT", "-s", "192.0.2.7", "-j", "DROP")
    host.sync(web("10.244.1.1"))
    host.sync(db("10.244.1.9"))
    host.sync(full=True)
    assert host.runner.check_rule(NAT, "PREROUTING", ["-p", "tcp", "--dport", "22", "-j", "MINE"])
    assert host.runner.check_rule("filter", "INPUT", ["-s", "192.0.2.7", "-j", "DROP"])
    before = len(host.saved().splitlines())
    host.sync(full=True)
    assert len(host.saved().splitlines()) == before


def test_cleanup_restores_what_was_there_before(host: Host) -> None:
    host.iptables("-I", "INPUT", "-s", "192.0.2.7", "-j", "DROP")
    before = host.saved()
    host.sync(
        web("10.244.1.1", node_port=30080, load_balancer_ips=["203.0.113.1"], external_local=True),
        db("10.244.1.9", affinity_seconds=60),
    )
    assert host.sysctls.read(ROUTE_LOCALNET) == "1"
    cleaning = CleanupContext(host.sysctls, (Family.IPV4,))
    assert [one.name for one in host.sysctls.undo()] == [ROUTE_LOCALNET]
    assert list(cleanup([host.runner], cleaning))
    assert compare_iptables.differences(before, host.saved()) == []
    assert "KUBE-" not in host.saved()
    assert host.sysctls.read(ROUTE_LOCALNET) == "0"
    assert nfacct.read_packets(INVALID_COUNTER) is None
    assert list(cleanup([host.runner], cleaning)) == []


@pytest.mark.parametrize("hostile", ['a"b', "a'b", "a\\", "a\n-j ACCEPT", "ä" * 200, "$(reboot)", "a b\t*"])
def test_hostile_names_are_loaded_as_harmless_comments(host: Host, hostile: str) -> None:
    port = service_port(hostile, node_port=30080, affinity_seconds=5)
    assert host.sync(plan(port, endpoint("10.244.1.1"), endpoint("10.244.1.2"))).rejected == {}
    assert host.differences() == []


def test_every_protocol_and_feature_at_once_reads_back_as_written(host: Host) -> None:
    for index, protocol in enumerate(Protocol):
        port = service_port(
            f"p{index}",
            cluster_ip=f"10.96.2.{index + 1}",
            protocol=protocol,
            node_port=31000 + index,
            external_ips=["198.51.100.1"],
            load_balancer_ips=["203.0.113.1", "203.0.113.2"],
            source_ranges=(cidr_from_text("10.0.0.0/8"), cidr_from_text("192.0.2.1/32")),
            affinity_seconds=10800,
            external_local=True,
            health_check_node_port=32000 + index,
        )
        local, remote = endpoint("10.244.1.1", local=True), endpoint("10.244.2.1")
        assert host.sync(plan(port, local, remote)).rejected == {}
    assert host.differences() == []


def test_rules_of_upstream_are_taken_over(host: Host) -> None:
    scenario = scenarios.load("seq-restart")
    for name in (INVALID_COUNTER, LOCALHOST_COUNTER):
        nfacct.ensure(name)
    recorded = (scenario.steps[0].directory / "iptables" / "iptables-save.txt").read_bytes()
    host.runner.restore(recorded)
    assert choose_variant(SystemCommands(), Family.IPV4) == host.variant
    backend = host.new_backend()
    scenarios.Replay(scenario, "iptables", [backend]).advance(scenario.steps[1])
    expected = (scenario.steps[1].directory / "iptables" / "iptables-save.txt").read_text()
    assert compare_iptables.differences(expected, host.saved()) == []


def test_a_restart_over_own_rules_writes_neither_filter_nor_nat(host: Host) -> None:
    host.sync(web("10.244.1.1", node_port=30080, affinity_seconds=9), db())
    host.backend = host.new_backend()
    seen: list[bytes] = []

    def watch(_: Sequence[str], text: bytes) -> bytes:
        seen.append(text)
        return text

    host.interfere = watch
    assert host.sync().full
    assert [text.split(b"\n")[0] for text in seen] == [b"*mangle"]
    assert host.differences() == []


def test_a_partial_sync_after_a_restart_of_the_process_is_a_full_one(host: Host) -> None:
    host.sync(web("10.244.1.1"), db("10.244.1.9"))
    host.backend = host.new_backend()
    del host.plans[db().name]
    assert host.sync(web("10.244.1.2")).full
    assert host.differences() == []
