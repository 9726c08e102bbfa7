"""Settings are made, recorded and put back; nothing about them is fatal."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pointsman.kernel.sysctl import (
    MAX_RESTORES,
    RESTORE_WINDOW_SECONDS,
    RESTORED_SECONDS,
    Change,
    Sysctls,
    Undone,
)

NAME = "net/ipv4/conf/all/route_localnet"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "proc/sys" / NAME
    path.parent.mkdir(parents=True)
    path.write_text("0\n")
    return tmp_path


def value(root: Path) -> str:
    return (root / "proc/sys" / NAME).read_text().strip()


def test_a_setting_that_is_right_already_is_neither_written_nor_recorded(root: Path) -> None:
    sysctls = Sysctls(root)
    assert sysctls.ensure(NAME, 0)
    assert sysctls.changes == {}
    assert (root / "proc/sys" / NAME).read_text() == "0\n"


def test_a_change_is_recorded_and_undone_by_another_process(root: Path) -> None:
    journal = root / "run/pointsman/sysctls.json"
    assert Sysctls(root, journal).ensure(NAME, 1)
    assert value(root) == "1"
    undone = Sysctls(root, journal).undo()
    assert value(root) == "0"
    assert undone == [Undone(NAME, Change("0", "1"), "1")]
    assert not journal.exists()
    assert Sysctls(root, journal).undo() == []


def test_the_first_value_found_is_the_one_restored(root: Path) -> None:
    journal = root / "journal.json"
    Sysctls(root, journal).ensure(NAME, 1)
    Sysctls(root, journal).ensure(NAME, 2)
    Sysctls(root, journal).undo()
    assert value(root) == "0"


def test_a_value_changed_by_somebody_else_since_is_left_alone(root: Path) -> None:
    sysctls = Sysctls(root)
    sysctls.ensure(NAME, 1)
    (root / "proc/sys" / NAME).write_text("7")
    assert [(one.name, one.found, one.taken) for one in sysctls.undo()] == [(NAME, "7", True)]
    assert value(root) == "7"


def test_a_crash_between_record_and_change_restores_nothing(root: Path) -> None:
    journal = root / "journal.json"
    Sysctls(root, journal).ensure(NAME, 1)
    (root / "proc/sys" / NAME).write_text("0\n")
    assert Sysctls(root, journal).undo() == []
    assert value(root) == "0"


def test_a_missing_or_unwritable_setting_is_a_condition_and_not_recorded(root: Path) -> None:
    sysctls = Sysctls(root, root / "journal.json")
    assert not sysctls.ensure("net/netfilter/nf_conntrack_max", 5)
    (missing,) = sysctls.conditions()
    assert "cannot set net/netfilter/nf_conntrack_max to 5" in missing.message
    assert missing.type == "SysctlNfConntrackMax"
    directory = root / "proc/sys/net/blocked"
    directory.mkdir()
    assert not sysctls.ensure("net/blocked", 5)
    assert sysctls.changes == {}


@pytest.mark.parametrize("content", ["", "not json", '{"a": 1}', '["x"]', '{"a": {"b": 1}}'])
def test_a_broken_journal_starts_anew(root: Path, content: str) -> None:
    journal = root / "journal.json"
    journal.write_text(content)
    sysctls = Sysctls(root, journal)
    assert sysctls.changes == {}
    assert sysctls.ensure(NAME, 1)
    assert NAME in Sysctls(root, journal).changes


def test_an_unwritable_journal_does_not_stop_the_change(root: Path) -> None:
    (root / "file").write_text("")
    assert Sysctls(root, root / "file" / "journal.json").ensure(NAME, 1)
    assert value(root) == "1"


def test_absolute_names_are_paths_below_the_root(root: Path) -> None:
    parameter = root / "sys/module/m/parameters/hashsize"
    parameter.parent.mkdir(parents=True)
    parameter.write_text("16384\n")
    sysctls = Sysctls(root)
    assert sysctls.read_int("/sys/module/m/parameters/hashsize") == 16384
    assert sysctls.ensure("/sys/module/m/parameters/hashsize", 32768)
    assert parameter.read_text() == "32768"
    assert sysctls.read_int(NAME + "x") is None


def test_a_journal_keeps_the_changes_of_other_namespaces(root: Path) -> None:
    journal = root / "journal.json"
    other = '{"net:[1]":{"net/ipv4/conf/all/route_localnet":{"before":"5","after":"1"}}}'
    journal.write_text(other)
    sysctls = Sysctls(root, journal)
    assert sysctls.changes == {}
    sysctls.ensure(NAME, 1)
    sysctls.undo()
    assert value(root) == "0"
    assert json.loads(journal.read_text()) == json.loads(other)


def test_objects_that_share_a_journal_lose_nothing_of_each_other(root: Path) -> None:
    journal = root / "journal.json"
    first, second = Sysctls(root, journal), Sysctls(root, journal)
    other = root / "proc/sys/net/ipv4/ip_forward"
    other.write_text("0\n")
    first.ensure(NAME, 1)
    second.ensure("net/ipv4/ip_forward", 1)
    assert set(first.changes) == set(second.changes) == {NAME, "net/ipv4/ip_forward"}
    Sysctls(root, journal).undo()
    assert (value(root), other.read_text()) == ("0", "0")


@contextmanager
def _no_room_for_files() -> Iterator[None]:
    """Files can be created and nothing written to them, as on a full file system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_state_directory_costs_the_record_and_collects_no_files(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = root / "state"
    sysctls = Sysctls(root, directory / "sysctls.json")
    (root / "proc/sys" / NAME).unlink()
    (root / "proc/sys" / NAME).symlink_to("/dev/null")
    with _no_room_for_files():
        assert [sysctls.ensure(NAME, wanted) for wanted in (1, 2, 3)] == [True] * 3
    assert list(directory.iterdir()) == []
    assert caplog.text.count("clean-up will not undo") == 1


class Changed:
    """A setting that this process keeps, while another program writes it."""

    def __init__(self, root: Path) -> None:
        self.now = 0.0
        self.file = root / "proc/sys" / NAME
        self.sysctls = Sysctls(root, clock=lambda: self.now)
        assert self.sysctls.ensure(NAME, 1)

    def restore(self, found: str, after: float = 0.0) -> tuple[str, str]:
        """Return the value and the reason of the condition after a check."""
        self.now += after
        self.file.write_text(f"{found}\n")
        self.sysctls.restore()
        reasons = [one.reason for one in self.sysctls.conditions()]
        return self.file.read_text().strip(), " ".join(reasons)


def test_a_setting_that_was_changed_externally_is_restored_and_reported_for_a_while(root: Path) -> None:
    changed = Changed(root)
    assert changed.restore("1") == ("1", "")
    assert changed.restore("7") == ("1", "Restored")
    assert "another program set" in changed.sysctls.conditions()[0].message
    assert changed.restore("1", RESTORED_SECONDS / 2) == ("1", "Restored")
    assert changed.restore("1", RESTORED_SECONDS / 2) == ("1", "")
    assert changed.sysctls.restored == 1
    changed.sysctls.undo()
    assert changed.file.read_text().strip() == "0"


def test_a_program_that_insists_on_its_value_keeps_it_and_is_reported(root: Path) -> None:
    changed = Changed(root)
    for _ in range(MAX_RESTORES):
        assert changed.restore("7", 1.0) == ("1", "Restored")
    assert changed.restore("7", 1.0) == ("7", "ChangedExternally")
    assert changed.restore("1", RESTORED_SECONDS) == ("1", "")
    assert changed.restore("7", RESTORE_WINDOW_SECONDS) == ("1", "Restored")


def test_a_size_that_another_program_raised_is_kept(root: Path) -> None:
    changed = Changed(root)
    changed.sysctls.forget_wanted([NAME])
    changed.sysctls.ensure(NAME, 1, at_least=True)
    assert changed.restore("7") == ("7", "")
    assert changed.restore("0") == ("1", "Restored")


def test_what_a_clean_up_beside_this_process_put_back_is_set_again(root: Path) -> None:
    journal = root / "journal.json"
    sysctls = Sysctls(root, journal)
    sysctls.ensure(NAME, 1)
    Sysctls(root, journal).undo()
    assert value(root) == "0"
    sysctls.restore()
    assert value(root) == "1"
    assert [one.reason for one in sysctls.conditions()] == ["Restored"]
    assert [one.name for one in Sysctls(root, journal).undo()] == [NAME]
    assert value(root) == "0"
