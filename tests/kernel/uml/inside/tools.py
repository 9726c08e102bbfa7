"""Independent readers for the tests inside User-mode Linux: the usual tools, which know nothing of our code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from pointsman.backends.ipvs.apply import IpvsBackend
from pointsman.model.addresses import Family

MakeBackend = Callable[..., IpvsBackend]


class Dump:
    """What the usual tools, which know nothing of our code, print about the current namespace."""

    def __call__(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def servers(self) -> str:
        return self("ipvsadm", "-Sn")

    def sets(self) -> str:
        return self("ipset", "save")

    def rules(self, family: Family) -> str:
        return self("iptables-legacy-save" if family is Family.IPV4 else "ip6tables-legacy-save")

    def addresses(self) -> str:
        return self("ip", "-j", "addr", "show", "dev", "kube-ipvs0")

    def address_list(self) -> list[str]:
        return sorted(info["local"] for link in json.loads(self.addresses()) for info in link["addr_info"])
