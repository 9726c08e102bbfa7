"""The complete rule set as text in the form of iptables-save, rendered without a kernel and without privileges."""

from __future__ import annotations

from pointsman.backends.contract import SyncRequest
from pointsman.backends.iptables import static
from pointsman.backends.iptables.compile import compile_plan
from pointsman.backends.iptables.fragment import Fragment, needs_comments
from pointsman.backends.iptables.static import (
    INVALID_COUNTER,
    LOCALHOST_COUNTER,
    KernelFacts,
    build_settings,
)
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, MANGLE, NAT

USUAL_KERNEL = KernelFacts(counters=frozenset((INVALID_COUNTER, LOCALHOST_COUNTER)))
"""A recent kernel with nfacct and strict TCP tracking."""


def render(
    request: SyncRequest, *, localhost_node_ports: bool = True, facts: KernelFacts = USUAL_KERNEL
) -> str:
    """Return what a node would hold after a full sync of this request, services in the order of their names."""
    settings = build_settings(request.context, facts, localhost_node_ports=localhost_node_ports)
    comments = needs_comments(request.plans.values())
    parts = [compile_plan(plan, settings, comments=comments) for _, plan in sorted(request.plans.items())]
    own_chains = sorted(chain for fragment in parts for chain in fragment.chains)
    filter_lines = [
        *static.build_filter_rules(settings),
        static.CANARY_RULE,
        *_collect_lines(FILTER, parts),
    ]
    nat_lines = [
        *static.build_nat_rules(settings),
        static.CANARY_RULE,
        *_collect_lines(NAT, parts),
        *static.build_node_port_jumps(settings),
    ]
    filter_chains = (*static.FILTER_CHAINS, names.KUBELET_FIREWALL, names.CANARY)
    tables: tuple[tuple[str, tuple[str, ...], list[str]], ...] = (
        (MANGLE, (names.CANARY,), []),
        (FILTER, filter_chains, filter_lines),
        (NAT, (*static.NAT_CHAINS, names.CANARY, *own_chains), nat_lines),
    )
    return "".join(_format_table(name, chains, lines) for name, chains, lines in tables)


def _format_table(table: str, chains: tuple[str, ...], lines: list[str]) -> str:
    built_in = names.BUILT_IN[table]
    jumps = [jump for jump in reversed(static.JUMPS) if jump.table == table]
    ordered = [f"-A {jump.line}" for chain in built_in for jump in jumps if jump.source == chain]
    # Stable: rules keep their order within a chain, chains are sorted as save prints them.
    rules = ordered + sorted(lines, key=lambda line: line.split(" ", 2)[1])
    declared = [f":{chain} ACCEPT [0:0]" for chain in built_in]
    declared += [f":{chain} - [0:0]" for chain in sorted(chains)]
    return "\n".join([f"*{table}", *declared, *rules, "COMMIT", ""])


def _collect_lines(table: str, fragments: list[Fragment]) -> list[str]:
    return b"".join([fragment.join_rules(table) for fragment in fragments]).decode().splitlines()
