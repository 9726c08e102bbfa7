"""Compares everything with the kernel now and then, where a mode's own look for foreign changes sees only part of it.

A flushed chain, a replaced rule or a real server with another weight would otherwise stay until the next full sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName
from pointsman.node.family import FamilyProxy
from pointsman.obs.log import get_log

_LEISURE: Final = 100
"""A look is followed by a pause of so many times its length at least: it never takes more than a hundredth of the time."""

_log = get_log(__name__)


class SecondLook:
    """Of one IP family; reads on a thread of its own while syncs go on."""

    def __init__(
        self,
        family: FamilyProxy,
        context: Callable[[], NodeContext],
        refused: Callable[[], Collection[ServicePortName]],
    ) -> None:
        """`refused` are service ports that the kernel did not take: what they lack is nobody's work."""
        self._family = family
        self._context = context
        self._refused = refused

    async def run(self, period: float) -> None:
        """Until cancelled; the first time after one period."""
        loop = asyncio.get_running_loop()
        pause = period
        while True:
            await asyncio.sleep(pause)
            started = loop.time()
            await self.look()
            pause = max(period, _LEISURE * (loop.time() - started))

    async def look(self) -> None:
        """What differs from what the last sync brought is the work of somebody else, and is repaired as such."""
        family = self._family
        if not family.loop.in_force:
            return
        context = self._context()
        try:
            compared = await family.compared(context, lambda _plans: None)
        except Exception as error:  # noqa: BLE001 whatever it was, a look must end neither the proxy nor the looks after it
            _log.warning("What the kernel holds cannot be compared", err=error, ipFamily=family.family.value)
            return
        refused = set(self._refused())
        found = [one for one in compared.differences if one.owner not in refused]
        as_synced = compared.taken.context == context and not compared.taken.unsynced
        if found and as_synced:
            others = len(found) - 1
            detail = f"{others} more differences" if others > 1 else "one more difference" if others else ""
            family.loop.damaged(msgspec.structs.replace(found[0], detail=detail))
