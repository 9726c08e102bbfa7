"""Running the tools: versions and flags, errors by kind, locks, variants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pointsman.errors import Busy, KernelError, NotSupported, Rejected
from pointsman.kernel.command import CommandResult
from pointsman.kernel.iptables import Incompatible, Iptables, RestoreRejected
from pointsman.kernel.iptables_programs import (
    LEGACY,
    NFT,
    choose_variant,
    find_features_of_version,
    find_programs,
    find_variants_in_use,
)
from pointsman.kernel.xtables_lock import LockNotOpened
from pointsman.model.addresses import Family

Answer = Callable[[Sequence[str], bytes], CommandResult]


class Scripted:
    """Answers every command through a function; `--version` through a version."""

    def __init__(self, answer: Answer, version: str = "v1.8.9 (nf_tables)") -> None:
        self.answer = answer
        self.version = version
        self.calls: list[list[str]] = []

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> CommandResult:
        if "--version" in arguments and not arguments[0].endswith("-restore"):
            return CommandResult(0, f"{arguments[0]} {self.version}\n".encode())
        self.calls.append(list(arguments))
        return self.answer(arguments, stdin)


def _says(status: int, error: str = "", output: str = "") -> Answer:
    return lambda arguments, stdin: CommandResult(status, output.encode(), error.encode())


@pytest.mark.parametrize(
    ("version", "check", "wait", "restore_wait", "random_fully"),
    [
        ((1, 4, 10), False, (), (), False),
        ((1, 4, 11), True, (), (), False),
        ((1, 4, 20), True, ("-w",), (), False),
        ((1, 4, 22), True, ("-w", "5"), (), False),
        ((1, 6, 1), True, ("-w", "5", "-W", "100000"), (), False),
        ((1, 6, 2), True, ("-w", "5", "-W", "100000"), ("-w", "5", "-W", "100000"), True),
        ((1, 8, 9), True, ("-w", "5"), ("-w", "5"), True),
    ],
)
def test_each_version_gets_the_flags_it_knows(
    version: tuple[int, ...],
    check: bool,
    wait: tuple[str, ...],
    restore_wait: tuple[str, ...],
    random_fully: bool,
) -> None:
    found = find_features_of_version(version)
    assert (found.check, found.wait, found.restore_wait, found.random_fully) == (
        check,
        wait,
        restore_wait,
        random_fully,
    )


def test_an_old_restore_that_knows_its_version_can_wait() -> None:
    commands = Scripted(_says(0, output="iptables-restore v1.4.21\n"), "v1.4.21")
    assert Iptables(Family.IPV4, commands).features.restore_wait == ("--wait",)


def test_a_restore_that_cannot_wait_runs_under_the_lock() -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def lock(path: Path) -> Iterator[None]:
        events.append("locked")
        yield
        events.append("unlocked")

    def answer(arguments: Sequence[str], stdin: bytes) -> CommandResult:
        events.append("probed" if "--version" in arguments else "restored")
        return CommandResult(1 if "--version" in arguments else 0)

    Iptables(Family.IPV4, Scripted(answer, "v1.4.19"), take_lock=lock).restore(b"*nat\nCOMMIT\n")
    assert events == ["probed", "locked", "restored", "unlocked"]


def test_missing_programs_say_so() -> None:
    with pytest.raises(NotSupported, match="gave no version: iptables boom"):
        _ = Iptables(Family.IPV4, Scripted(_says(0), "boom")).features


@pytest.mark.parametrize(
    ("complaint", "line"),
    [
        ("iptables-restore: line 3 failed", 3),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): \nline 2: RULE_APPEND failed (No such file): rule in chain X",
            2,
        ),
        (
            "iptables-restore v1.8.9 (legacy): unknown option\nError occurred at line: 2\nTry `iptables-restore -h'",
            2,
        ),
    ],
)
def test_a_refused_restore_names_and_shows_the_line(complaint: str, line: int) -> None:
    text = b"*nat\n-A BAD --rule\n-A WORSE --rule\nCOMMIT\n"
    with pytest.raises(RestoreRejected) as caught:
        Iptables(Family.IPV4, Scripted(_says(2, complaint))).restore(text)
    assert caught.value.line == line
    assert text.splitlines()[line - 1].decode() in str(caught.value)


def test_a_refused_restore_without_a_line_is_an_ordinary_error() -> None:
    with pytest.raises(KernelError, match="out of memory") as caught:
        Iptables(Family.IPV4, Scripted(_says(1, "out of memory"))).restore(b"*nat\nCOMMIT\n")
    assert not isinstance(caught.value, Rejected)


def test_a_restore_refused_for_want_of_memory_blames_no_line() -> None:
    complaint = (
        "iptables-nft-restore v1.8.9 (nf_tables): \nline 2: RULE_APPEND failed (Cannot allocate memory)"
    )
    with pytest.raises(KernelError, match="Cannot allocate memory") as caught:
        Iptables(Family.IPV4, Scripted(_says(4, complaint))).restore(b"*nat\n-A GOOD -j X\nCOMMIT\n")
    assert not isinstance(caught.value, RestoreRejected)


def test_a_taken_lock_is_busy_for_every_operation(tmp_path: Path) -> None:
    text = "Another app is currently holding the xtables lock; still 4s 0us time ahead to have a chance"
    runner = Iptables(Family.IPV4, Scripted(_says(4, text)), lock_file=tmp_path / "lock")
    for operation in (
        lambda: runner.has_chain("nat", "X"),
        lambda: runner.list_chain("nat", "X"),
        lambda: runner.check_rule("nat", "X", ["-j", "Y"]),
        lambda: runner.restore(b""),
    ):
        with pytest.raises(Busy, match="is held by"):
            operation()


def test_a_lock_file_that_cannot_be_opened_is_named_with_what_to_do() -> None:
    text = "Fatal: can't open lock file /run/xtables.lock: Read-only file system"
    runner = Iptables(Family.IPV4, Scripted(_says(4, text)))
    for operation in (runner.find_obstacle, lambda: runner.restore(b"*nat\nCOMMIT\n")):
        with pytest.raises(
            LockNotOpened, match=r"lock file /run/xtables.lock: Read-only file system; in a container, mount"
        ):
            operation()


def test_a_missing_chain_is_not_an_error_but_a_lack_of_rights_is() -> None:
    gone = Iptables(Family.IPV4, Scripted(_says(1, "iptables: No chain/target/match by that name.")))
    assert not gone.has_chain("nat", "X")
    denied = Iptables(Family.IPV4, Scripted(_says(4, "iptables: Permission denied (you must be root).")))
    with pytest.raises(KernelError, match="you must be root"):
        denied.has_chain("nat", "X")
    assert "Permission denied" in str(denied.find_obstacle())


@pytest.mark.parametrize("complaint", ["Cannot allocate memory", "Resource temporarily unavailable"])
def test_a_momentary_lack_is_no_obstacle_but_an_error_that_says_so(complaint: str) -> None:
    lacking = Iptables(Family.IPV4, Scripted(_says(4, f"iptables: {complaint}.\n")))
    with pytest.raises(KernelError) as caught:
        lacking.find_obstacle()
    assert caught.value.is_temporary


def test_a_rule_that_leads_to_a_missing_chain_does_not_exist() -> None:
    text = "iptables v1.8.9 (nf_tables): Chain 'NOPE' does not exist\nTry `iptables -h'"
    assert not Iptables(Family.IPV4, Scripted(_says(2, text))).check_rule("nat", "X", ["-j", "NOPE"])


def test_wrong_usage_is_an_error() -> None:
    text = 'iptables v1.8.9 (nf_tables): unknown option "--bogus"'
    with pytest.raises(KernelError, match="--bogus"):
        Iptables(Family.IPV4, Scripted(_says(2, text))).check_rule("nat", "X", ["--bogus"])


def test_native_rules_in_a_table_of_iptables_are_explained() -> None:
    text = "iptables v1.8.9 (nf_tables): table `nat' is incompatible, use 'nft' tool."
    with pytest.raises(Rejected, match="move them"):
        Iptables(Family.IPV4, Scripted(_says(1, text))).save("nat")


NATIVE_CHAIN = (
    "iptables v1.8.9 (nf_tables): chain `POSTROUTING' in table `nat' is incompatible, use 'nft' tool."
)


def test_a_table_that_iptables_cannot_list_is_not_an_empty_one() -> None:
    text = "# Table `nat' is incompatible, use 'nft' tool.\n"
    with pytest.raises(Incompatible, match="move them"):
        Iptables(Family.IPV4, Scripted(_says(0, output=text))).save("nat")
    warning = "# Warning: iptables-legacy tables present, use iptables-legacy-save to see them\n"
    with pytest.raises(Incompatible, match=r"Table `nat' is incompatible.*move them"):
        Iptables(Family.IPV4, Scripted(_says(0, warning, text))).save("nat")
    beside = "# Table `nat' contains incompatible base-chains, use 'nft' tool to list them.\n*nat\nCOMMIT\n"
    assert Iptables(Family.IPV4, Scripted(_says(0, output=beside))).save("nat") == beside.encode()


def test_rules_that_stand_in_the_way_are_not_a_kernel_without_nat() -> None:
    obstacle = Iptables(Family.IPV4, Scripted(_says(1, NATIVE_CHAIN))).find_obstacle()
    assert isinstance(obstacle, Incompatible)


@pytest.mark.parametrize(
    ("status", "complaint", "unsupported"),
    [
        (
            3,
            "iptables: can't initialize iptables table `nat': Table does not exist (do you need to insmod?)",
            True,
        ),
        (1, "iptables-save: Cannot initialize: Table does not exist (do you need to insmod?)", True),
        (4, "iptables (nf_tables): Could not fetch rule set generation id: Invalid argument", True),
        (1, "iptables (nf_tables): Failed to initialize nft: Protocol not supported", True),
        (3, "iptables: can't initialize iptables table `nat': Permission denied (you must be root)", False),
        (
            4,
            "iptables (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)",
            False,
        ),
        (4, "iptables (nf_tables): Could not fetch rule set generation id: Cannot allocate memory", False),
        (3, "iptables (nf_tables): Parsing nftables rule failed", False),
    ],
)
def test_only_what_the_kernel_lacks_is_called_unsupported(
    status: int, complaint: str, unsupported: bool
) -> None:
    with pytest.raises(KernelError) as caught:
        Iptables(Family.IPV4, Scripted(_says(status, complaint))).save("nat")
    assert isinstance(caught.value, NotSupported) is unsupported


def test_without_check_rules_are_looked_up_in_the_saved_text() -> None:
    saved = '*nat\n-A OUTPUT -m comment --comment "a b" -j X\nCOMMIT\n'
    runner = Iptables(Family.IPV4, Scripted(_says(0, output=saved), "v1.4.7"))
    assert runner.check_rule("nat", "OUTPUT", ["-j", "X", "-m", "comment", "--comment", "a b"])
    assert not runner.check_rule("nat", "OUTPUT", ["-j", "Y"])


def _host(nft: str, legacy: str) -> Scripted:
    return Scripted(
        lambda arguments, _: CommandResult(0, (legacy if "legacy" in arguments[0] else nft).encode())
    )


@pytest.fixture
def legacy_in_use(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "ip_tables_names").write_text("nat\nfilter\n")
    return tmp_path


def test_the_operators_choice_wins(legacy_in_use: Path) -> None:
    commands = _host("", "")
    given = {"POINTSMAN_IPTABLES_VARIANT": LEGACY}
    assert choose_variant(commands, Family.IPV4, environment=given, proc=legacy_in_use) == LEGACY
    assert commands.calls == []


def test_an_unknown_variant_is_refused_with_the_choices(tmp_path: Path) -> None:
    given = {"POINTSMAN_IPTABLES_VARIANT": "new"}
    with pytest.raises(NotSupported, match="'new': set it to nft or legacy"):
        choose_variant(_host("", ""), Family.IPV4, environment=given, proc=tmp_path)


@pytest.mark.parametrize(
    ("nft", "legacy", "chosen"),
    [
        (":KUBE-KUBELET-CANARY - [0:0]\n", ":KUBE-SERVICES - [0:0]\n-A INPUT\n-A INPUT\n", NFT),
        ("-A INPUT -j ACCEPT\n", ":KUBE-KUBELET-CANARY - [0:0]\n", LEGACY),
        ("-A INPUT -j ACCEPT\n", ":KUBE-SERVICES - [0:0]\n", LEGACY),
        (":INPUT ACCEPT\n", "-A INPUT -j ACCEPT\n", LEGACY),
        ("-A INPUT -j ACCEPT\n", ":INPUT ACCEPT\n", NFT),
        ("", "", ""),
    ],
)
def test_the_variant_in_use_is_chosen(nft: str, legacy: str, chosen: str, legacy_in_use: Path) -> None:
    assert choose_variant(_host(nft, legacy), Family.IPV4, environment={}, proc=legacy_in_use) == chosen


def test_legacy_tables_are_not_created_by_looking(tmp_path: Path) -> None:
    commands = _host("", ":KUBE-KUBELET-CANARY - [0:0]\n")
    assert choose_variant(commands, Family.IPV4, environment={}, proc=tmp_path) == ""
    assert [call[0] for call in commands.calls] == ["iptables-nft-save"]
    assert find_variants_in_use(Family.IPV4, proc=tmp_path) == [NFT]


def test_program_names_follow_family_and_variant() -> None:
    assert find_programs(Family.IPV6, LEGACY).restore == "ip6tables-legacy-restore"
    assert find_programs(Family.IPV4).save == "iptables-save"
