"""Checks of the node: small sources of conditions that belong to no other part.

A further check is a class or function with a `conditions` that is quick (it runs for every probe), and a line in `Proxy` or in
`app/assembly.py` that adds it to the board. One that takes longer runs beside and pushes its result by `ConditionBoard.replace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pointsman.conditions import Blocks, Condition
from pointsman.machine.settings import LOOSE_TRACKING
from pointsman.model.addresses import Family
from pointsman.model.service import ServicePortName
from pointsman.node.state import NodeState
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import SyncOutcome


def find_unserved_families(unsupported: Mapping[Family, str], node: NodeState) -> Iterator[Condition]:
    """Name families that this machine cannot serve although the Node has addresses of them: their packets are lost."""
    for family, reason in unsupported.items():
        if node.facts.ips_of(family):
            type_ = f"Family{family.value}"
            yield Condition.false(type_, "NotSupported", reason, blocks=Blocks.READINESS)


class LooseTrackingCheck(SyncListener):
    """Whether connections to removed endpoints can be reset, as long as some Service asks for that.

    A kernel that tracks a connection only from its first packet on passes the client's next packet untranslated, so that it is
    never reset.
    """

    def __init__(self, read_setting: Callable[[str], int | None]) -> None:
        self._read_setting = read_setting
        self._resetting: set[tuple[Family, ServicePortName]] = set()

    def on_synced(self, outcome: SyncOutcome) -> None:
        for name, change in outcome.changes.items():
            if change.new is not None and change.new.resets_gone:
                self._resetting.add((outcome.family, name))
            else:
                self._resetting.discard((outcome.family, name))

    def conditions(self) -> Iterator[Condition]:
        if not self._resetting or self._read_setting(LOOSE_TRACKING) != 0:
            return
        names = sorted({name.key for _, name in self._resetting})
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Condition.false(
            "ResetGone",
            "LooseTrackingDisabled",
            f"nf_conntrack_tcp_loose is 0, so connections to removed endpoints of {names[0]}{more} are not reset "
            "(annotation pointsman.dev/reset-gone or --reset-gone)",
            "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1",
        )
