"""Limits of this process: where they are read, and when they count as near."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.machine.resources import Usage, count_descriptors, find_unwritable_reason, read_memory

V2 = ("0::/kubepods/pod1", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
V1 = (
    "9:name=systemd:/\n4:memory:/docker/1\n0::/",
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)


@pytest.mark.parametrize("layout", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("has_namespace", [False, True])
def test_memory_is_that_of_the_own_cgroup_without_what_can_be_dropped(
    layout: tuple[str, ...], has_namespace: bool, tmp_path: Path
) -> None:
    groups, mount, limit, current, droppable = layout
    own = groups.replace("/kubepods/pod1", "/").replace("/docker/1", "/") if has_namespace else groups
    path = (
        tmp_path
        / mount
        / ("" if has_namespace else own.split("\n")[0 if layout is V2 else 1].split(":")[2][1:])
    )
    path.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{groups}\n")
    (path / limit).write_text("1000\n")
    (path / current).write_text("950\n")
    (path / "memory.stat").write_text(f"anon 1\n{droppable} 100\n")
    found = read_memory(tmp_path)
    assert (found, found is not None and found.is_near_limit) == (Usage(850, 1000), False)
    (path / current).write_text("1000\n")
    full = read_memory(tmp_path)
    assert full is not None
    assert full.is_near_limit
    (path / limit).write_text("max\n")
    assert read_memory(tmp_path) is None


def test_a_directory_that_does_not_exist_yet_counts_as_the_one_it_will_be_in(tmp_path: Path) -> None:
    assert find_unwritable_reason(tmp_path / "made/later") == ""
    (tmp_path / "file").write_text("")
    assert find_unwritable_reason(tmp_path / "file/state") == f"{tmp_path}/file is not a directory"


def test_open_files_are_counted(tmp_path: Path) -> None:
    before = count_descriptors()
    with (tmp_path / "one").open("w"):
        assert count_descriptors() == Usage(before.used + 1, before.limit)
