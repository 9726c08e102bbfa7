"""Whether connections to gone endpoints can be reset: a kernel that tracks a connection only from its first packet on
passes the client's next packet untranslated, so that nobody resets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pointsman.kernel.sysctl import Degraded
from pointsman.machine.settings import LOOSE_TRACKING
from pointsman.model.addresses import Family
from pointsman.model.service import ServicePortName
from pointsman.node.degraded import DegradedChecks
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import SyncOutcome

_CHECK: Final = "nf_conntrack_tcp_loose"


class LooseTracking(SyncListener):
    """Looks at the setting after syncs, as long as some Service asks for such resets."""

    def __init__(self, degraded: DegradedChecks, read_setting: Callable[[str], int | None]) -> None:
        self._degraded = degraded
        self._read_setting = read_setting
        self._asking: set[tuple[Family, ServicePortName]] = set()

    def on_synced(self, outcome: SyncOutcome) -> None:
        for name, change in outcome.changes.items():
            if change.new is not None and change.new.resets_gone:
                self._asking.add((outcome.family, name))
            else:
                self._asking.discard((outcome.family, name))
        off = bool(self._asking) and self._read_setting(LOOSE_TRACKING) == 0
        self._degraded.report("reset-gone", [self._problem()] if off else [])

    def _problem(self) -> Degraded:
        names = sorted({name.key for _, name in self._asking})
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        message = (
            f"{_CHECK} is 0, so that connections to gone endpoints of {names[0]}{more} are not reset "
            f"(annotation pointsman.dev/reset-gone or --reset-gone): sysctl -w net.netfilter.{_CHECK}=1"
        )
        return Degraded(_CHECK, message)
