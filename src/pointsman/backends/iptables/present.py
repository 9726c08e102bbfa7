"""What the kernel already holds as it should be, so that a full sync need not write it again.

Reading the tables and comparing text is cheaper than writing: a restart over our own rules writes next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pointsman.backends.iptables import static
from pointsman.backends.iptables.fragment import NAT_SERVICES, SHARED_CHAINS, Fragment, SharedChain
from pointsman.backends.iptables.settings import Settings
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.spelling import canonical
from pointsman.model.service import ServicePortName

Held = Mapping[str, bytes]
"""The chains of a table as they were saved, each with its rules as one text."""


class Present(msgspec.Struct, frozen=True):
    """Parts of the rule set that are right."""

    services: frozenset[ServicePortName] = frozenset()
    """Service ports whose own chains are right."""
    shared: frozenset[SharedChain] = frozenset()
    """Shared chains that are right."""
    frames: frozenset[str] = frozenset()
    """Tables whose chains outside the services are right."""


NOTHING_PRESENT = Present()


def present_in(
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    held: Mapping[str, Held],
) -> Present:
    """Compare with the chains of tables filter and nat as they were saved, text against text."""
    services = frozenset(
        name for name, fragment in fragments.items() if _own_chains_stand(fragment, held[NAT])
    )
    tails = {NAT_SERVICES: list(static.node_port_jumps(settings))}
    shared = set()
    for chain in SHARED_CHAINS:
        want = b"".join([fragment.lines_in(chain) for fragment in fragments.values()]).splitlines()
        want_last = [line.encode() for line in tails.get(chain, [])]
        have = held[chain.table].get(chain.chain, b"?").splitlines()
        split = len(have) - len(want_last)
        if have[split:] == want_last and sorted(have[:split]) == sorted(want):
            shared.add(chain)
    frames = frozenset(table for table in (FILTER, NAT) if _frame_stands(settings, table, held[table]))
    return Present(services, frozenset(shared), frames)


def stands_as_written(
    settings: Settings,
    fragments: Mapping[ServicePortName, Fragment],
    held: Mapping[str, Held],
) -> bool:
    """Whether all of it is there, in the spelling in which it is written."""
    present = present_in(settings, fragments, held)
    return (
        len(present.services) == len(fragments)
        and present.shared == frozenset(SHARED_CHAINS)
        and present.frames == frozenset((FILTER, NAT))
    )


def _own_chains_stand(fragment: Fragment, held: Held) -> bool:
    first = fragment.declarations[1:].partition(b" ")[0].decode()
    if first and first not in held:  # as for every service port of a first sync
        return False
    return b"".join([held.get(chain, b"?") for chain in fragment.chains]) == fragment.rules


def _frame_stands(settings: Settings, table: str, held: Held) -> bool:
    want: dict[str, list[str]] = {chain: [] for chain in static.frame_chains(table, settings)}
    for line in static.frame_rules(table, settings):
        want[line.split(" ", 2)[1]].append(canonical(line))
    return all(
        chain in held
        and [canonical(line) for line in held[chain].decode(errors="replace").splitlines()] == rules
        for chain, rules in want.items()
    )
