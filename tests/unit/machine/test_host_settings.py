"""Conntrack sysctls and the OOM score as kube-proxy sets them at start."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from pointsman.config.types import Conntrack
from pointsman.kernel.sysctl import Sysctls
from pointsman.machine.settings import (
    apply_conntrack,
    apply_oom_score,
    compute_conntrack_max,
    compute_conntrack_targets,
    count_cores,
)

P = "net/netfilter/nf_conntrack_"
HASHSIZE = "sys/module/nf_conntrack/parameters/hashsize"


@pytest.mark.parametrize(
    ("per_core", "minimum", "cores", "expected"),
    [
        (32768, 131072, 2, 131072),
        (32768, 131072, 8, 262144),
        (32768, 131072, 64, 1048576),
        (0, 131072, 8, 0),
        (100, 0, 4, 400),
        (1, 2_000_000, 1, 2_000_000),
    ],
)
def test_table_size_scales_with_cores_within_its_bounds(
    per_core: int, minimum: int, cores: int, expected: int
) -> None:
    assert compute_conntrack_max(per_core, minimum, cores) == expected


def test_defaults_set_size_and_tcp_timeouts_and_leave_the_rest() -> None:
    assert compute_conntrack_targets(Conntrack(), 2) == {
        f"{P}max": 131072,
        f"{P}tcp_timeout_established": 86400,
        f"{P}tcp_timeout_close_wait": 3600,
    }


def test_zero_leaves_everything_alone() -> None:
    nothing = Conntrack(
        max_per_core=0, tcp_established_timeout=timedelta(0), tcp_close_wait_timeout=timedelta(0)
    )
    assert compute_conntrack_targets(nothing, 64) == {}


def test_every_setting_can_be_asked_for() -> None:
    settings = Conntrack(
        max_per_core=0,
        tcp_established_timeout=timedelta(hours=2),
        tcp_close_wait_timeout=timedelta(seconds=90, milliseconds=900),
        tcp_be_liberal=True,
        udp_timeout=timedelta(seconds=40),
        udp_stream_timeout=timedelta(minutes=3),
    )
    assert compute_conntrack_targets(settings, 1) == {
        f"{P}tcp_timeout_established": 7200,
        f"{P}tcp_timeout_close_wait": 90,
        f"{P}udp_timeout": 40,
        f"{P}udp_timeout_stream": 180,
        f"{P}tcp_be_liberal": 1,
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "proc/sys/net/netfilter"
    directory.mkdir(parents=True)
    for name, value in (("max", 65536), ("tcp_timeout_established", 432000), ("tcp_timeout_close_wait", 60)):
        (directory / f"nf_conntrack_{name}").write_text(f"{value}\n")
    (tmp_path / HASHSIZE).parent.mkdir(parents=True)
    (tmp_path / HASHSIZE).write_text("16384\n")
    return tmp_path


def test_settings_reach_their_files_and_the_hash_table_grows(root: Path) -> None:
    sysctls = Sysctls(root)
    applied = apply_conntrack(Conntrack(), sysctls, 8)
    assert sysctls.conditions() == ()
    assert (root / "proc/sys" / f"{P}max").read_text() == "262144"
    assert (root / "proc/sys" / f"{P}tcp_timeout_established").read_text() == "86400"
    assert (root / HASHSIZE).read_text() == "65536"
    assert f"{P}max=262144" in applied


def test_a_larger_hash_table_is_not_shrunk(root: Path) -> None:
    (root / HASHSIZE).write_text("1000000\n")
    apply_conntrack(Conntrack(), Sysctls(root), 8)
    assert (root / HASHSIZE).read_text() == "1000000\n"


def test_what_cannot_be_set_is_a_condition_and_the_rest_is_set(root: Path) -> None:
    blocked = root / "proc/sys" / f"{P}max"
    blocked.unlink()
    blocked.mkdir()
    sysctls = Sysctls(root)
    apply_conntrack(Conntrack(), sysctls, 8)
    assert [problem.type for problem in sysctls.conditions()] == ["SysctlNfConntrackMax"]
    assert (root / "proc/sys" / f"{P}tcp_timeout_close_wait").read_text() == "3600"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a read-only mount")
@pytest.mark.parametrize(("found", "types"), [("4194304", []), ("1024", ["SysctlNfConntrackMax"])])
def test_a_connection_table_that_is_large_enough_is_not_missed_where_it_cannot_be_set(
    found: str, types: list[str], tmp_path: Path
) -> None:
    """Nodes of kind and k3d share the table of their host and may not change its size."""
    table = tmp_path / "proc/sys" / f"{P}max"
    table.parent.mkdir(parents=True)
    table.write_text(f"{found}\n")
    code = (
        "from pointsman.config.types import Conntrack; from pointsman.kernel.sysctl import Sysctls\n"
        "from pointsman.machine.settings import apply_conntrack\n"
        "from datetime import timedelta; none = timedelta(0)\n"
        "asked = Conntrack(tcp_established_timeout=none, tcp_close_wait_timeout=none)\n"
        "sysctls = Sysctls(root); apply_conntrack(asked, sysctls, 8); found = sysctls.conditions()\n"
    )
    assert _conditions_where_nothing_can_be_written(tmp_path, code) == types


def test_cores_are_those_of_the_machine(tmp_path: Path) -> None:
    online = tmp_path / "sys/devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0-3,8,10-11\n")
    assert count_cores(tmp_path) == 7
    online.write_text("nonsense\n")
    assert count_cores(tmp_path) >= 1
    assert count_cores(tmp_path / "nowhere") >= 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a read-only mount")
@pytest.mark.parametrize(("found", "types"), [("-997", []), ("0", []), ("500", ["OOMScore"])])
def test_a_score_that_may_not_be_set_is_missed_only_where_nobody_else_saw_to_it(
    found: str, types: list[str], tmp_path: Path
) -> None:
    """The kubelet gives the shipped pod -997, or 0 where it has no choice, and the pod may not change it."""
    score = tmp_path / "proc/self/oom_score_adj"
    score.parent.mkdir(parents=True)
    score.write_text(f"{found}\n")
    code = (
        "from pointsman.machine.settings import apply_oom_score\n"
        "found = filter(None, [apply_oom_score(-999, root)])\n"
    )
    assert _conditions_where_nothing_can_be_written(tmp_path, code) == types


def _conditions_where_nothing_can_be_written(root: Path, code: str) -> list[str]:
    """The types of the conditions that the code returns; root's own rights would let it write, a read-only mount does not."""
    told = "\nprint(*(problem.type for problem in found), sep='\\n', end='')"
    begin = "import sys; from pathlib import Path; root = Path(sys.argv[1])\n"
    confined = 'mount --bind -o ro "$1" "$1" && exec "$0" -c "$2" "$1"'
    done = subprocess.run(
        ("unshare", "--mount", "sh", "-c", confined, sys.executable, str(root), begin + code + told),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_oom_score_is_written_or_a_condition(tmp_path: Path) -> None:
    problem = apply_oom_score(-999, tmp_path)
    assert problem is not None
    assert problem.type == "OOMScore"
    score = tmp_path / "proc/self/oom_score_adj"
    score.parent.mkdir(parents=True)
    score.write_text("0\n")
    assert apply_oom_score(-999, tmp_path) is None
    assert score.read_text() == "-999"
