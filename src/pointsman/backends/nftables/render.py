"""The complete table in nft syntax, made without a kernel and without privileges. Pure."""

from __future__ import annotations

from pointsman.backends.contract import SyncRequest, compile_each
from pointsman.backends.nftables.compile import fragment_from_plan
from pointsman.backends.nftables.contents import Contents


def render(request: SyncRequest, *, counters: bool = False) -> str:
    """What a node would hold after a full sync of this request; the same for the same request."""
    contents = Contents(request.context, counters=counters)
    contents.load(
        compile_each(
            request.plans, lambda plan: fragment_from_plan(plan, request.context, counters=counters), {}
        )
    )
    return contents.text()
