"""A comparison of the tables with what they should hold, beside the backend.

Saving a table takes no lock and runs in a process of its own, so a sync goes on meanwhile. Over nftables it begins anew
whenever somebody changes a rule, so it may come to no end while syncs follow each other closely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pointsman.backends.contract import Difference
from pointsman.backends.iptables.memory import Memory, comments_wanted
from pointsman.backends.iptables.settings import Settings
from pointsman.backends.iptables.verify import differences
from pointsman.kernel.iptables import FILTER, NAT
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

LOOK_SECONDS = 20.0
"""After that the answer is that the kernel could not be read."""


class IptablesComparison:
    """Implements `pointsman.backends.contract.Comparison`."""

    def __init__(
        self,
        save: Callable[[str], bytes],
        settings: Settings,
        memory: Memory,
        plans: Mapping[ServicePortName, ServicePlan],
        compared: Mapping[ServicePortName, ServicePlan],
        *,
        complete: bool,
    ) -> None:
        """`save` reads a table; `memory` belongs to this comparison; `complete` when all service ports are compared."""
        self._save = save
        self._settings = settings
        self._memory = memory
        self._plans = plans
        self._compared = compared
        self._complete = complete

    def differences(self) -> list[Difference]:
        comments = comments_wanted(self._plans.values())
        fragments = {
            name: self._memory.recall(plan) or self._memory.compiled(plan, self._settings, comments)
            for name, plan in self._compared.items()
        }
        kernel = {table: self._save(table) for table in (FILTER, NAT)}
        return differences(self._settings, fragments, kernel, complete=self._complete)
