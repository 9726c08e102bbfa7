"""IP families that this machine cannot serve although the Node has addresses of them: packets to their Services are lost."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.kernel.sysctl import Degraded
from pointsman.model.addresses import Family
from pointsman.node.degraded import DegradedChecks
from pointsman.node.state import NodeState
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import SyncOutcome


class UnservedFamilies(SyncListener):
    """Looks after each sync, because the Node may get or lose addresses; a family that no node uses troubles nobody."""

    def __init__(self, refused: Mapping[Family, str], node: NodeState, degraded: DegradedChecks) -> None:
        self._refused, self._node, self._degraded = refused, node, degraded

    @property
    def current(self) -> dict[Family, str]:
        """Which ones, and why."""
        facts = self._node.facts
        return {family: why for family, why in self._refused.items() if facts.ips_of(family)}

    def on_synced(self, _outcome: SyncOutcome) -> None:
        found = [Degraded(f"{family.value} not served", why) for family, why in self.current.items()]
        self._degraded.report("IP families", found)
