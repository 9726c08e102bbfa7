"""Outcomes as text for a terminal: bars and counts. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pointsman.lab.hosts import BRIDGE, HOSTS, NODES
from pointsman.lab.probe import Kind, Outcome
from pointsman.screen import Screen, draw_bar

_COLOURS = {"pod1": 36, "pod2": 32, "pod3": 34, "pod4": 35, "pod5": 33}

MAP = """\
   client     client2               outside the cluster
     │           │
  ───┴───────────┴──────┬─────────────────┬───  172.30.0.0/24
                        │                 │
                 node n1│          node n2│
                  ┌─────┼─────┐        ┌──┴──┐
                 pod1  pod2  pod3     pod4  pod5
"""


def render_answers(outcomes: Sequence[Outcome], screen: Screen, hosts: Sequence[str] = ()) -> list[str]:
    """Render one line per answering pod (node, bar, count, share, source addresses it saw), then failures.

    `hosts` are shown even when none of them answered.
    """
    by = Counter(outcome.by for outcome in outcomes if outcome.kind is Kind.ANSWERED)
    lines = []
    for name in sorted(set(by) | set(hosts)):
        share = by[name] / len(outcomes) if outcomes else 0.0
        seen = sorted({o.seen for o in outcomes if o.by == name})
        drawn = screen.paint(draw_bar(share, screen), _COLOURS.get(name, 37))
        note = f"sees {', '.join(map(_name_address, seen))}" if seen else screen.dim("no connections")
        lines.append(f"{name} on {HOSTS[name].node}  {drawn} {by[name]:4d}  {share:4.0%}   {note}")
    failed = Counter(o.kind.value for o in outcomes if o.kind is not Kind.ANSWERED)
    lines += [screen.bad(f"{count} {kind}") for kind, count in sorted(failed.items())]
    return lines


def _name_address(address: str) -> str:
    """Return the address with the name of its owner."""
    family = 6 if ":" in address else 4
    owners = {host.address(family): name for name, host in HOSTS.items()}
    owners |= {bridge[family]: f"node {node}" for node, bridge in BRIDGE.items()}
    owners |= {HOSTS[node].address(family): f"node {node}" for node in NODES}
    return f"{address} ({owners[address]})" if address in owners else address


def compute_median_milliseconds(outcomes: Sequence[Outcome]) -> float:
    """Return the median connect time of answered probes."""
    times = sorted(o.seconds for o in outcomes if o.kind is Kind.ANSWERED)
    return times[len(times) // 2] * 1000 if times else 0.0


_ELEMENTS = re.compile(r"\b(map|set) (\S+) \{(.*?)\n\t\}", re.DOTALL)
_CHAIN_TARGET = re.compile(r"(?:goto|jump) (\S+)")


def find_path_through_table(listing: str, address: str) -> list[str]:
    """Return the elements that a packet to `address` matches in an nftables listing, and the chains they name."""
    lines: list[str] = []
    chains: dict[str, None] = {}
    for kind, name, body in _ELEMENTS.findall(listing):
        _, _, elements = body.partition("elements = {")
        found = [e.strip(" \t\n}") for e in elements.split(",") if re.search(rf"(?<![\d.:]){address} ", e)]
        if found:
            lines += [f"{kind} {name}", *(f"    {' '.join(element.split())}" for element in found)]
            chains |= dict.fromkeys(target for element in found for target in _CHAIN_TARGET.findall(element))
    for chain in chains:
        block = re.search(rf"\n\tchain {re.escape(chain)} \{{\n(.*?)\n\t\}}", listing, re.DOTALL)
        if block:
            rules = [line.strip() for line in block[1].splitlines()]
            lines += [f"chain {chain}", *(f"    {rule}" for rule in rules if not rule.startswith("comment "))]
    return lines
