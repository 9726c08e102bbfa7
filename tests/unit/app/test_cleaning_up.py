"""Clean-up goes through every mode whatever one of them meets, and says truthfully what became of each thing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from tests.fake import toy_mode

from pointsman.app.modes import remove_everything, remove_leftovers
from pointsman.backends.contract import CleanupContext, CleanupItem, CleanupStatus
from pointsman.cli import cleanup
from pointsman.config.mode_table import MODES, ModeRow
from pointsman.errors import KernelError
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family


@pytest.fixture
def modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy mode, and one whose clean-up gets stuck half way; real ones must not touch this machine."""

    def stuck(_cleaning: CleanupContext) -> Iterator[CleanupItem]:
        yield CleanupItem("pebble", "first")
        raise KernelError("the second is glued on")

    module = ModuleType("stuck_mode")
    module.MODE = msgspec.structs.replace(toy_mode.MODE, name="stuck", cleanup=stuck)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv(toy_mode.KERNEL, str(tmp_path))
    real = dict(MODES)
    MODES.clear()
    MODES.update({toy_mode.TOY: toy_mode.ROW, "stuck": ModeRow(module=module.__name__)})
    yield
    MODES.clear()
    MODES.update(real)


def test_a_mode_whose_clean_up_fails_keeps_none_of_the_others_from_theirs(
    modes: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    toy_mode.held(Family.IPV4).write_text("left")
    assert cleanup.clean_up_like_kube_proxy("pointsman", tmp_path / "state") == 1
    told = capsys.readouterr()
    assert told.out == "removed pebble first\nremoved toy lines in IPv4\n"
    assert told.err == "pointsman: could not clean up leftovers of mode stuck: the second is glued on\n"
    assert not toy_mode.held(Family.IPV4).exists()


def test_the_running_mode_is_not_its_own_leftover(modes: None, tmp_path: Path) -> None:
    toy_mode.held(Family.IPV4).write_text("in use")
    assert [one.name for one in remove_leftovers(toy_mode.MODE, tmp_path)] == ["first", "stuck"]
    assert toy_mode.held(Family.IPV4).exists()


def test_every_clean_up_knows_the_ranges_of_other_programs(
    modes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Sequence[str]] = []

    def clean_up(cleaning: CleanupContext) -> Iterator[CleanupItem]:
        seen.append(cleaning.exclude_cidrs)
        yield from ()

    mode = msgspec.structs.replace(toy_mode.MODE, name="stuck", cleanup=clean_up)
    monkeypatch.setattr(sys.modules["stuck_mode"], "MODE", mode)
    remove_leftovers(toy_mode.MODE, tmp_path, ("192.0.2.0/24",))
    remove_everything(tmp_path, exclude_cidrs=("192.0.2.0/24",))
    assert seen == [("192.0.2.0/24",)] * 2


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (CleanupItem("table", "ip kube-proxy"), "removed table ip kube-proxy"),
        (
            CleanupItem("chains of services", where="iptables table nat", count=3),
            "removed 3 chains of services in iptables table nat",
        ),
        (
            CleanupItem(
                "kernel setting",
                "net/ipv4/ip_forward",
                status=CleanupStatus.KEPT,
                why="it was changed externally to 1",
            ),
            "kept kernel setting net/ipv4/ip_forward: it was changed externally to 1",
        ),
        (
            CleanupItem(
                "kernel setting", "net/ipv4/ip_forward", status=CleanupStatus.RESTORED, why="from 1 to 0"
            ),
            "restored kernel setting net/ipv4/ip_forward: from 1 to 0",
        ),
        (
            CleanupItem("rules", where="ip6tables-nft", status=CleanupStatus.FAILED, why="the lock is held"),
            "pointsman: could not clean up rules in ip6tables-nft: the lock is held",
        ),
    ],
)
def test_what_was_done_is_said_with_the_right_verb(done: CleanupItem, said: str) -> None:
    assert cleanup.render_item(done) == said


def test_settings_are_restored_left_to_their_new_owner_or_reported(modes: None, tmp_path: Path) -> None:
    del MODES["stuck"]
    state = tmp_path / "state"
    sysctls = Sysctls(journal=state / "sysctls.json")
    files = {name: tmp_path / name for name in ("ours", "taken", "same", "gone")}
    for file in files.values():
        file.write_text("0")
        assert sysctls.ensure(str(file), 1)
    files["taken"].write_text("7")
    files["same"].write_text("0")
    files["gone"].unlink()
    files["gone"].mkdir()
    done = {one.name.rpartition("/")[2]: (one.status, one.why) for one in remove_everything(state)}
    assert done == {
        "ours": (CleanupStatus.RESTORED, "from 1 to 0"),
        "taken": (CleanupStatus.KEPT, "it was changed externally to 7"),
        "gone": (CleanupStatus.KEPT, "there is no such setting any more"),
    }
    assert remove_everything(state) == []
