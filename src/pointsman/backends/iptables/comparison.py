"""A comparison of the tables with what they should hold, beside the backend.

Saving a table takes no lock and runs in a process of its own, so a sync goes on meanwhile. Over nftables it begins anew
whenever somebody changes a rule, so it may come to no end while syncs follow each other closely.
"""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.backends.contract import Difference
from pointsman.backends.iptables import static
from pointsman.backends.iptables.fragment import Fragment
from pointsman.backends.iptables.memory import Memory, comments_wanted
from pointsman.backends.iptables.present import stands_as_written
from pointsman.backends.iptables.settings import Settings
from pointsman.backends.iptables.verify import differences
from pointsman.backends.netfilter import names, saved
from pointsman.backends.netfilter.jumps import Jump
from pointsman.backends.netfilter.sleeping import sleeping
from pointsman.kernel.iptables import FILTER, NAT, Iptables
from pointsman.kernel.nft_ruleset import Ruleset
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

LOOK_SECONDS = 20.0
"""After that the answer is that the kernel could not be read."""

Plans = Mapping[ServicePortName, ServicePlan]


class LastLook:
    """When everything was found in order, and for which plans; each comparison may have a thread of its own."""

    def __init__(self) -> None:
        self._found: tuple[int, Settings, Plans] | None = None

    def still_true(self, generation: int | None, settings: Settings, plans: Plans) -> bool:
        """Whether nobody has changed anything since."""
        return generation is not None and self._found == (generation, settings, plans)

    def in_order(self, generation: int | None, settings: Settings, plans: Plans) -> None:
        self._found = None if generation is None else (generation, settings, plans)


class IptablesComparison:
    """Implements `pointsman.backends.contract.Comparison`."""

    def __init__(
        self,
        runner: Iptables,
        ruleset: Ruleset,
        settings: Settings,
        memory: Memory,
        plans: Plans,
        compared: Plans,
        *,
        last: LastLook | None,
    ) -> None:
        """`memory` belongs to this comparison; `last` is given when all service ports are compared."""
        self._runner = runner
        self._ruleset = ruleset
        self._settings = settings
        self._memory = memory
        self._plans = plans
        self._compared = compared
        self._last = last

    def differences(self) -> list[Difference]:
        if self._last is None:
            return self._read(complete=False)
        generation = self._ruleset.generation()
        if self._last.still_true(generation, self._settings, self._compared):
            return []
        found = self._read(complete=True)
        if not found:
            self._last.in_order(generation, self._settings, self._compared)
        return found

    def _read(self, *, complete: bool) -> list[Difference]:
        comments = comments_wanted(self._plans.values())
        fragments = {
            name: self._memory.recall(plan) or self._memory.compiled(plan, self._settings, comments)
            for name, plan in self._compared.items()
        }
        kernel = {table: self._runner.save(table, seconds=LOOK_SECONDS) for table in (FILTER, NAT)}
        asleep = sleeping(self._ruleset)
        if complete and self._quickly_found_right(fragments, kernel):
            return asleep
        return [*asleep, *differences(self._settings, fragments, kernel, self._ask, complete=complete)]

    def _ask(self, jump: Jump) -> bool:
        return self._runner.check_rule(jump.table, jump.source, jump.rule)

    def _quickly_found_right(
        self, fragments: Mapping[ServicePortName, Fragment], kernel: Mapping[str, bytes]
    ) -> bool:
        """Text against text, which is what there is to do nearly always; no says nothing, because spellings differ."""
        outlines = {table: saved.outline(text) for table, text in kernel.items()}
        if not all(jump.is_in(outlines[jump.table]) for jump in static.JUMPS):
            return False
        wanted = {chain for fragment in fragments.values() for chain in fragment.chains}
        there = {chain for outline in outlines.values() for chain in outline.chains}
        if any(names.is_service_chain(chain) for chain in there - wanted):
            return False
        held = {table: saved.blocks(text) for table, text in kernel.items()}
        return stands_as_written(self._settings, fragments, held)
