"""Conntrack settings in a real network namespace, where the table size belongs to the host and is read-only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pointsman.config.types import Conntrack
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.netns import Namespace
from pointsman.machine.settings import apply_conntrack

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
PREFIX = "net/netfilter/nf_conntrack_"


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    space = Namespace()
    with space.entered():
        if not Path("/proc/sys/net/netfilter/nf_conntrack_udp_timeout").exists():
            pytest.skip("nf_conntrack is not loaded")
        yield space
    space.close()


def test_timeouts_are_set_and_put_back_by_a_later_process(namespace: Namespace, tmp_path: Path) -> None:
    journal = tmp_path / "sysctls.json"
    before = {
        name: Sysctls().read(f"{PREFIX}{name}")
        for name in ("tcp_timeout_established", "tcp_timeout_close_wait", "udp_timeout", "tcp_be_liberal")
    }
    settings = Conntrack(
        max_per_core=0,
        tcp_established_timeout=timedelta(hours=7),
        tcp_close_wait_timeout=timedelta(minutes=61),
        udp_timeout=timedelta(seconds=77),
        tcp_be_liberal=True,
    )
    sysctls = Sysctls(journal=journal)
    apply_conntrack(settings, sysctls, 2)
    assert sysctls.conditions() == ()
    assert sysctls.read_int(f"{PREFIX}tcp_timeout_established") == 25200
    assert sysctls.read_int(f"{PREFIX}udp_timeout") == 77
    assert sysctls.read_int(f"{PREFIX}tcp_be_liberal") == 1
    Sysctls(journal=journal).undo()
    assert {name: sysctls.read(f"{PREFIX}{name}") for name in before} == before


def test_a_read_only_table_size_is_a_condition_and_the_rest_is_set(namespace: Namespace) -> None:
    wanted = (Sysctls().read_int(f"{PREFIX}max") or 0) + 4
    settings = Conntrack(max_per_core=1, min=wanted, udp_timeout=timedelta(seconds=78))
    sysctls = Sysctls()
    apply_conntrack(settings, sysctls, 1)
    assert "SysctlNfConntrackMax" in [problem.type for problem in sysctls.conditions()]
    assert Sysctls().read_int(f"{PREFIX}udp_timeout") == 78
    assert Sysctls().read_int(f"{PREFIX}max") == wanted - 4
