"""A comparison of the table with what it should hold, beside the backend: own socket, own compiling."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from pointsman.backends.contract import Difference, compile_each
from pointsman.backends.nftables.compile import fragment_from_plan
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.family_traits import traits_of
from pointsman.backends.nftables.narrow_reader import NarrowReader
from pointsman.backends.nftables.reader import Reader
from pointsman.backends.nftables.verify import differences
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName


class NftablesComparison:
    """Implements `pointsman.backends.contract.Comparison`; compiles anew, so that it also sees mistakes of memory."""

    def __init__(
        self,
        context: NodeContext,
        plans: Mapping[ServicePortName, ServicePlan],
        *,
        counters: bool,
        complete: bool,
    ) -> None:
        """`complete` when these are all service ports: then whatever else is in the table is a difference."""
        self._context = context
        self._plans = plans
        self._counters = counters
        self._complete = complete

    def differences(self) -> list[Difference]:
        contents = self._contents()
        with contextlib.closing(NftablesSocket()) as socket:
            return differences(contents, self._reader(socket, contents))

    def _reader(self, socket: NftablesSocket, contents: Contents) -> Reader:
        traits = traits_of(self._context.family)
        return Reader(socket, traits) if self._complete else NarrowReader(socket, traits, contents)

    def _contents(self) -> Contents:
        contents = Contents(self._context, counters=self._counters)
        contents.load(
            compile_each(
                self._plans,
                lambda plan: fragment_from_plan(plan, self._context, counters=self._counters),
                {},
            )
        )
        return contents
