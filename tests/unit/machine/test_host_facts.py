"""Reading the host: settings from a tree of files, everything else from whatever this machine has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pointsman.errors import NotSupported
from pointsman.kernel.command import CommandResult
from pointsman.kernel.sysctl import Sysctls
from pointsman.machine.foreign_chains import ForeignChains
from pointsman.machine.host_facts import LinuxHost
from pointsman.model.addresses import Family


class NoPrograms:
    """A container without iptables."""

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> CommandResult:
        del stdin, timeout
        raise NotSupported(f"{arguments[0]} is not installed")


def test_settings_are_read_from_proc(tmp_path: Path) -> None:
    for name, value in {
        "net/ipv4/ip_forward": "0",
        "net/ipv6/conf/all/forwarding": "1",
        "net/netfilter/nf_conntrack_count": "4096",
        "net/netfilter/nf_conntrack_max": "4096",
    }.items():
        path = tmp_path / "proc" / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    host = LinuxHost(Sysctls(tmp_path), ForeignChains(NoPrograms()))
    facts = host.look(Family.IPV4, [b"\x7f\0\0\1", bytes(15) + b"\1"])
    assert (facts.forwarding, facts.conntrack_count, facts.conntrack_max) == (False, 4096, 4096)
    assert facts.routes.keys() == {b"\x7f\0\0\1"}
    assert host.look(Family.IPV6, []).forwarding is True
