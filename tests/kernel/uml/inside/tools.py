"""Independent readers for the tests inside User-mode Linux: the usual tools, which know nothing of our code."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pointsman.backends.ipvs.apply import IpvsBackend
from pointsman.kernel.iptables_programs import LEGACY, OVERRIDE, find_programs
from pointsman.model.addresses import Family

MakeBackend = Callable[..., IpvsBackend]

VARIANT: Final = os.environ.get(OVERRIDE, LEGACY)
"""Of iptables; chosen at boot: new kernels have no legacy tables."""
IPTABLES: Final = f"iptables-{VARIANT}"
HAS_LEGACY: Final = Path("/proc/net/ip_tables_names").exists()
SAVE: Final = {family: find_programs(family, VARIANT).save for family in Family}


class Dump:
    """What the usual tools, which know nothing of our code, print about the current namespace."""

    def __call__(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def servers(self) -> str:
        return self("ipvsadm", "-Sn")

    def sets(self) -> str:
        return self("ipset", "save")

    def rules(self, family: Family) -> str:
        return self(SAVE[family])

    def addresses(self) -> str:
        return self("ip", "-j", "addr", "show", "dev", "kube-ipvs0")

    def address_list(self) -> list[str]:
        return sorted(info["local"] for link in json.loads(self.addresses()) for info in link["addr_info"])
