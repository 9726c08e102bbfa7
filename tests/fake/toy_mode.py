"""A fourth proxy mode in one module: its kernel is a dictionary of lines, one for each frontend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pointsman.backends.contract import (
    Announcement,
    Cleaning,
    Difference,
    Drift,
    KernelCounter,
    Mode,
    Removed,
    Setup,
    SyncReport,
    SyncRequest,
    Traffic,
)
from pointsman.backends.packet_quirks import PacketQuirks
from pointsman.config.mode_table import ModeRow
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Family, address_text
from pointsman.model.plan import FrontendKind
from pointsman.obs.metric_groups import MetricGroup

TOY = "toy"
ROW = ModeRow(module=__name__, periods="nftables", masquerade="nftables", node_ports=("localhost",))

kernel: dict[Family, dict[str, str]] = {}
"""By family and frontend: where it leads."""
damage: list[Drift] = []
"""What somebody else is going to have done."""


def lines(request: SyncRequest) -> dict[str, str]:
    found = {}
    for name, plan in sorted(request.plans.items()):
        for frontend in plan.frontends:
            at = address_text(frontend.address) if frontend.address else "node"
            targets = ", ".join(str(endpoint) for endpoint in plan.cluster_endpoints)
            found[f"{at}:{frontend.port}/{name.protocol.lower}"] = f"{name} [{targets}]"
    return found


class ToyBackend:
    def __init__(self, family: Family) -> None:
        self.family = family

    def sync(self, request: SyncRequest) -> SyncReport:
        kernel[self.family] = lines(request)
        return SyncReport(full=request.full, rules_total={"lines": len(kernel[self.family])})

    def drift(self) -> Drift | None:
        return damage.pop() if damage else None

    def verify(self, request: SyncRequest) -> list[Difference]:
        want, have = lines(request), kernel.get(self.family, {})
        return [
            Difference(f"line {key}", want.get(key, ""), have.get(key, ""))
            for key in sorted(want.keys() | have.keys())
            if want.get(key) != have.get(key)
        ]

    def traffic(self) -> Traffic:
        return Traffic()

    def close(self) -> None:
        """Kernel state stays."""


def _backend(_setup: Setup, family: Family, _sysctls: Sysctls) -> ToyBackend:
    return ToyBackend(family)


def _render(_setup: Setup, request: SyncRequest) -> str:
    return _text(lines(request))


def _text(held: Mapping[str, str]) -> str:
    return "".join(f"{key} -> {target}\n" for key, target in held.items())


def _cleanup(_cleaning: Cleaning) -> Iterator[Removed]:
    for family in list(kernel):
        yield Removed("lines", where=family.value, count=len(kernel.pop(family)))


MODE = Mode(
    name=TOY,
    preflight=lambda _setup, _family: (),
    backend=_backend,
    render=_render,
    cleanup=_cleanup,
    quirks=PacketQuirks(refuses_other_ports_of=frozenset(FrontendKind), usual_node_ports="loopback"),
    localhost_node_ports=lambda _config: True,
    drift_seconds=0.05,
    metrics=frozenset((MetricGroup.FULL_AND_PARTIAL_SYNCS,)),
    counters=(
        KernelCounter("toy_lines_total", "Lines of the toy kernel", lambda: sum(map(len, kernel.values()))),
    ),
    announcements=(Announcement("ToyMode", "This mode is a toy."),),
)
