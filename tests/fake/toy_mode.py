"""A fourth proxy mode: this module, one row in the table, and nothing else.

Its kernel is a directory with one file of lines per IP family, so that several processes see the same one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pointsman.backends.contract import (
    PRESENT,
    Announcement,
    Backend,
    CleanupContext,
    CleanupItem,
    Comparison,
    Difference,
    KernelCounter,
    Mode,
    PacketQuirks,
    Setup,
    SyncReport,
    SyncRequest,
)
from pointsman.conditions import Condition
from pointsman.config.mode_table import MODES, ModeRow
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family, address_text
from pointsman.model.plan import FrontendKind
from pointsman.model.service import ServicePortName
from pointsman.obs import MetricGroup

TOY = "toy"
ROW = ModeRow(module="tests.fake.toy_mode", periods="nftables", masquerade="nftables")
KERNEL = "TOY_KERNEL"
"""The environment variable that names the directory."""
COMPARE = "TOY_COMPARE_SECONDS"
"""The one that says how often lines are compared; unless it is there, only the absence of all of them is noticed."""


def held(family: Family) -> Path:
    return Path(os.environ[KERNEL]) / f"{family.value}.txt"


def wanted(request: SyncRequest) -> str:
    found = []
    for name, plan in sorted(request.plans.items()):
        targets = ", ".join(str(endpoint) for endpoint in plan.endpoints.cluster)
        for frontend in plan.frontends:
            at = address_text(frontend.address) if frontend.address else "node"
            found.append(f"{at} {frontend.port} {name.protocol.lower} -> {name} at {targets}\n")
    return "".join(found)


class ToyBackend(Backend):
    """Writes the whole file at every sync."""

    def __init__(self, family: Family) -> None:
        self.family = family

    def sync(self, request: SyncRequest) -> SyncReport:
        text = wanted(request)
        held(self.family).write_text(text)
        return SyncReport(
            full=request.full,
            rules_total={"lines": text.count("\n")},
            batch_bytes=len(text),
            conditions=(Condition.false("Toy", "OnlyAToy", "a toy is only a toy"),),
        )

    def find_drift(self) -> Difference | None:
        return None if held(self.family).exists() else Difference("the toy kernel", PRESENT)

    def prepare_comparison(
        self, request: SyncRequest, only: Collection[ServicePortName] | None = None
    ) -> Comparison:
        _ = only
        want = set(wanted(request).splitlines())

        def compare() -> list[Difference]:
            have = set(held(self.family).read_text().splitlines()) if held(self.family).exists() else set()
            missing = [Difference("line", line, "") for line in sorted(want - have)]
            return missing + [Difference("line", "", line) for line in sorted(have - want)]

        return Comparison(compare)


def _preflight(_setup: Setup, _family: Family) -> Sequence[str]:
    return () if Path(os.environ[KERNEL]).is_dir() else ("the toy kernel is missing",)


def _backend(_setup: Setup, family: Family, _sysctls: Sysctls) -> ToyBackend:
    return ToyBackend(family)


def _render(_setup: Setup, request: SyncRequest) -> str:
    return wanted(request)


def _cleanup(_cleaning: CleanupContext) -> Iterator[CleanupItem]:
    for family in Family:
        if held(family).exists():
            held(family).unlink()
            yield CleanupItem("toy lines", where=family.value)


def _synced_families() -> int:
    return sum(held(family).exists() for family in Family)


MODE = Mode(
    name=TOY,
    preflight=_preflight,
    backend=_backend,
    render=_render,
    cleanup=_cleanup,
    quirks=PacketQuirks(rejects_other_ports_of=frozenset(FrontendKind)),
    localhost_node_ports=lambda _config: False,
    drift_seconds=0.05,
    compare_seconds=float(os.environ[COMPARE]) if COMPARE in os.environ else None,
    metrics=frozenset((MetricGroup.FULL_AND_PARTIAL_SYNCS,)),
    counters=(KernelCounter("toy_families_total", "Families in the toy kernel", _synced_families),),
    announcements=(Announcement("ToyMode", "This mode is a toy."),),
)


def main() -> int:
    """The program with the toy mode: what `pointsman` would be had the row been in the table."""
    from pointsman.cli.main import main as pointsman

    MODES[TOY] = ROW
    return pointsman()


if __name__ == "__main__":
    sys.exit(main())
