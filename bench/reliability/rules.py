"""External changes of our rules, and the time until they are repaired."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence

from bench.reliability.world import FRONTENDS, Done, FaultyNode, Row, run_node, under_traffic
from tests.harness.node import NODE_IP
from tests.harness.waiting import wait_until
from tests.kernel.nft_kernel import table

DAMAGES: Mapping[str, Sequence[str]] = {
    "table deleted": ("delete table ip kube-proxy",),
    "table flushed": ("flush table ip kube-proxy",),
    "map emptied": ("flush map ip kube-proxy service-ips",),
    "table made dormant": ("add table ip kube-proxy { flags dormant ; }",),
    "policy of a base chain changed": ("add chain ip kube-proxy filter-forward { policy drop ; }",),
    "base chain hooked elsewhere": (
        "flush chain ip kube-proxy filter-output-pre-dnat",
        "delete chain ip kube-proxy filter-output-pre-dnat",
        "add chain ip kube-proxy filter-output-pre-dnat { type filter hook output priority 50 ; }",
        "add rule ip kube-proxy filter-output-pre-dnat ct state new jump firewall-check",
    ),
    "rule replaced": (
        "flush chain ip kube-proxy masquerading",
        "add rule ip kube-proxy masquerading counter accept",
        "add rule ip kube-proxy masquerading counter accept",
    ),
    "element changed": (
        "delete element ip kube-proxy endpoints { 10.96.0.10 . tcp . 80 . 0 }",
        f"add element ip kube-proxy endpoints {{ 10.96.0.10 . tcp . 80 . 0 : {NODE_IP} . 9 }}",
    ),
}
"""By name, the commands to nft. All damage the IPv4 table; that of IPv6 stays whole and must keep serving."""


def damage(times: int, chance: random.Random) -> Iterator[Row]:
    with run_node("nftables") as made:
        whole = _listed(made)
        for name, commands in DAMAGES.items():

            def work(made: FaultyNode, commands: Sequence[str] = commands) -> Done:
                waits = []
                for _ in range(times):
                    time.sleep(chance.uniform(0.0, 1.0))
                    waits.append(_repaired(made, commands, whole))
                average = sum(waits) / len(waits)
                return Done(times, f"repaired after {average:.1f} s on average, {max(waits):.1f} s at most")

            yield under_traffic(f"{name} by others", made, work, FRONTENDS[1:2])


def _repaired(made: FaultyNode, commands: Sequence[str], whole: str) -> float:
    """How long it takes until the table is as it was."""
    repairs = _repairs(made)
    made.node.run("nft", "-f", "-", text="\n".join(commands) + "\n")
    damaged = time.monotonic()
    wait_until(lambda: _repairs(made) > repairs and _listed(made) == whole, seconds=60)
    made.serves("10.96.0.10")
    return time.monotonic() - damaged


def _repairs(made: FaultyNode) -> float:
    return made.node.metric("pointsman_drift_repaired_total", ip_family="IPv4")


def _listed(made: FaultyNode) -> str:
    """Our table as nft prints it; empty while it is away."""
    return table(made.node.namespace) if "kube-proxy" in made.node.run("nft", "list", "tables", "ip") else ""
