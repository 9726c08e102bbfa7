"""The contract between the sync loop and a proxy mode.

A backend belongs to one IP family and one worker thread. It owns what it put into the kernel: it remembers the
fragments it committed, sends only what differs, and commits its memory only after the kernel accepted. The
caller owns the plans. `sync` either succeeds (perhaps leaving out single service ports the kernel refused, named
in the report) or raises KernelError, in which case the old kernel state stands and the caller comes back with
the same changes and `full=True`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

_Fragment = TypeVar("_Fragment")


def compiled_each(
    plans: Mapping[ServicePortName, ServicePlan],
    compile_one: Callable[[ServicePlan], _Fragment],
    rejected: dict[ServicePortName, str],
) -> dict[ServicePortName, _Fragment]:
    """The fragments of all plans; a plan that cannot be compiled goes into `rejected` and harms no other."""
    fragments: dict[ServicePortName, _Fragment] = {}
    for name, plan in plans.items():
        try:
            fragments[name] = compile_one(plan)
        except Exception as error:  # noqa: BLE001 one object must never keep the others from being served
            rejected[name] = f"cannot be compiled: {error!r}"
    return fragments


class SyncRequest(msgspec.Struct, frozen=True):
    """Desired state: all plans, and which of them changed since the last successful sync."""

    context: NodeContext
    plans: Mapping[ServicePortName, ServicePlan]
    """Every current plan; must not be kept or changed by the backend."""
    changed: Mapping[ServicePortName, ServicePlan | None]
    """Plans that are new or different; None for service ports that are gone. Ignored when `full`."""
    full: bool = False
    """Make the kernel equal to `plans` whatever it holds now."""


class SyncReport(msgspec.Struct, frozen=True):
    """What a successful sync did."""

    full: bool
    rejected: Mapping[ServicePortName, str] = {}
    """Service ports left out because the kernel refused them, with the reason."""
    rules_total: Mapping[str, int] = {}
    """Rules (iptables: per table) or elements (nftables: per set and map) owned after this sync."""
    rules_last: Mapping[str, int] = {}
    """The same, counting only what this sync wrote."""
    batch_bytes: int = 0
    notes: Sequence[str] = ()
    """What an operator should know: drift repaired, foreign objects removed."""


class Difference(msgspec.Struct, frozen=True):
    """One disagreement between kernel and desired state, for `verify` and `render --diff`."""

    what: str
    """The kernel object, e.g. `map service-ips 10.96.0.1 . tcp . 443`."""
    want: str
    """Empty when the kernel holds something it should not."""
    have: str
    """Empty when something is missing."""
    service: str = ""


class Damage(enum.Enum):
    """How an object of ours was found."""

    DELETED = "deleted"
    EMPTIED = "emptied"
    REPLACED = "replaced"
    CHANGED = "changed"
    ADDED = "added"


class Drift(msgspec.Struct, frozen=True):
    """Somebody else changed what we own."""

    what: str
    """The kernel object, e.g. `chain lb-3`."""
    damage: Damage
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.damage.value}{f' ({self.detail})' if self.detail else ''}"


class Backend(Protocol):
    """One proxy mode for one IP family."""

    mode: str
    family: Family

    def sync(self, request: SyncRequest) -> SyncReport:
        """Bring the kernel to the desired state; raises KernelError and changes nothing on failure."""

    def drift(self) -> Drift | None:
        """A cheap look whether somebody else changed what we own; None means no."""

    def verify(self, request: SyncRequest) -> list[Difference]:
        """Read the kernel and compare it with the desired state, without changing anything."""

    def close(self) -> None:
        """Release sockets; kernel state stays."""
