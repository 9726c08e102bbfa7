"""Data and text of `status` and `verify`."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator

import msgspec

from pointsman.backends.contract import PRESENT, Difference
from pointsman.conditions import Blocks, Condition
from pointsman.kube.status import WatchStatus
from pointsman.model.decision import State
from pointsman.model.findings import Finding
from pointsman.screen import PLAIN, Screen, Table, lay_out
from pointsman.wording.findings import describe

MAX_DIFFERENCES_SHOWN = 100
MAX_REJECTED_REPORTED = 1000


class ProxyState(enum.Enum):
    """The proxy in one word."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Works less well than configured."""
    FAILING = "failing"
    """Some Service, some change or the whole node is not served."""

    @classmethod
    def of(cls, conditions: Iterable[Condition]) -> ProxyState:
        failing = [condition for condition in conditions if condition.is_failing]
        if any(condition.does_block(Blocks.SERVICES) for condition in failing):
            return cls.FAILING
        return cls.DEGRADED if failing else cls.HEALTHY


class SyncPoint(msgspec.Struct, frozen=True, rename="camel"):
    """One sync of the recent past."""

    at: float
    """Unix time at its end."""
    seconds: float
    full: bool
    changed: int
    error: str = ""


class FamilyStatus(msgspec.Struct, rename="camel"):
    """Syncs of one IP family so far."""

    family: str
    last_sync_age: float | None = None
    """Seconds since the last successful sync, as of a report; None before the first."""
    pending: int = 0
    """Service ports that changed and are not in the kernel yet, as of a report."""
    pause: float = 0.0
    """Seconds between two syncs while changes arrive continuously, as of a report."""
    service_ports: int = 0
    endpoints: int = 0
    without_local_endpoints: int = 0
    """Policies Local, internal and external, of service ports that have no endpoint here."""
    rejected: dict[str, str] = {}
    """Service ports that the kernel rejected, with the reason."""
    last_error: str = ""
    drift_repaired: int = 0
    syncs: int = 0
    """Number of all syncs, successful or not."""
    history: list[SyncPoint] = []
    """The last syncs, successful or not."""


class WatchReport(msgspec.Struct, frozen=True, rename="camel"):
    """One watched kind, or the manifests."""

    kind: str
    connected: bool
    synced: bool
    age: float | None
    """Seconds since the last event, bookmark or page of a list."""
    objects: int
    bad_objects: int
    """Objects and files that cannot be used now."""
    failures: int
    last_error: str
    rejected: tuple[Finding, ...] = ()
    """The first of them, each with its reason."""
    ignored: dict[str, int] = {}
    """Objects in manifests whose kinds a proxy does not use, by kind."""

    @classmethod
    def from_status(cls, kind: str, status: WatchStatus, now: float) -> WatchReport:
        """A kind that the server does not have is neither disconnected nor incomplete."""
        rejected = itertools.islice(status.rejected.values(), MAX_REJECTED_REPORTED)
        return cls(
            kind=kind,
            connected=status.connected or status.absent,
            synced=status.synced or status.absent,
            age=status.age(now),
            objects=status.objects,
            bad_objects=status.bad_objects,
            failures=status.failures_total,
            last_error=status.last_error,
            rejected=tuple(map(describe, rejected)),
            ignored=dict(status.ignored),
        )


class ReloadReport(msgspec.Struct, frozen=True, rename="camel"):
    """Reloads of the configuration file."""

    count: int = 0
    error: str = ""
    age: float | None = None


class StatusReport(msgspec.Struct, frozen=True, rename="camel"):
    """State of a running proxy."""

    version: str
    mode: str
    node: str
    zone: str
    addresses: tuple[str, ...]
    uptime: float
    families: tuple[FamilyStatus, ...]
    watches: tuple[WatchReport, ...]
    reload: ReloadReport
    health: ProxyState
    conditions: tuple[Condition, ...]
    service_states: dict[str, int] = {}
    """Number of service ports by `State`."""

    @property
    def exit_status(self) -> int:
        return 1 if self.health is ProxyState.FAILING else 0


class FamilyVerification(msgspec.Struct, frozen=True, rename="camel"):
    """Kernel against desired state of one IP family."""

    family: str
    differences: tuple[Difference, ...]
    pending: int
    error: str = ""
    """Why the kernel could not be read."""


class Verification(msgspec.Struct, frozen=True, rename="camel"):
    """Result of `verify`."""

    mode: str
    families: tuple[FamilyVerification, ...]

    @property
    def exit_status(self) -> int:
        if any(family.error for family in self.families):
            return 2
        return 1 if any(family.differences for family in self.families) else 0


def render_status(status: StatusReport, screen: Screen = PLAIN) -> str:
    """Render a status for a terminal."""
    where = f" in zone {status.zone}" if status.zone else ""
    lines: list[str | Table] = [
        f"Pointsman {status.version}, {status.mode} mode, up {format_age(status.uptime)}",
        f"Node {status.node}{where}: {', '.join(status.addresses) or 'no address known'}",
        "",
    ]
    rows = [
        ["FAMILY", "LAST SYNC", "TOOK", "PAUSE", "PENDING", "SERVICE PORTS", "ENDPOINTS", "SYNCS", "REPAIRED"]
    ]
    rows += [_build_family_row(family) for family in status.families]
    lines += [Table(rows), ""]
    if status.watches:
        rows = [["WATCH", "STATE", "LAST EVENT", "OBJECTS", "BAD", "FAILURES"]]
        rows += [_build_watch_row(watch) for watch in status.watches]
        lines += [Table(rows), ""]
    for watch in status.watches:
        if watch.ignored:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(watch.ignored.items()))
            lines.append(f"Ignored: {kinds} (not used by a proxy)")
    if status.reload.age is not None:
        state = "rejected" if status.reload.error else "in use"
        lines.append(f"Configuration reloaded {format_age(status.reload.age)} ago: {state}")
    failing = [condition for condition in status.conditions if condition.is_failing]
    for condition in sorted(failing, key=lambda one: not one.does_block(Blocks.SERVICES)):
        sign = "✗" if condition.does_block(Blocks.SERVICES) else "! degraded:"
        lines.append(f"{sign} {condition.type}: {condition.text}")
    unserved = [f"! {text}" for text in count_unserved(status.service_states)]
    lines += unserved
    if not failing:
        lines.append("✓ no known problems" + (" of the proxy itself" if unserved else ""))
    return lay_out(lines, screen)


def count_unserved(states: dict[str, int], program: str = "pointsman") -> Iterator[str]:
    """Yield how many service ports are without a healthy endpoint: rarely the proxy's fault, and no condition of it."""
    total = sum(states.values())
    for state, text in ((State.DOWN, "down"), (State.PARTIAL, "partial (some clients fail)")):
        count = states.get(state.value, 0)
        if count:
            verb = "is" if count == 1 else "are"
            hint = f"to see which: {program} list --state {state.value}"
            yield f"{count} of {total} service ports {verb} {text}; {hint}"


def _build_family_row(family: FamilyStatus) -> list[str]:
    age = "never" if family.last_sync_age is None else f"{format_age(family.last_sync_age)} ago"
    good = [point for point in family.history if not point.error]
    took = f"{good[-1].seconds * 1000:.1f} ms" if good else "-"
    return [
        family.family,
        age,
        took,
        f"{family.pause * 1000:.0f} ms",
        str(family.pending),
        str(family.service_ports),
        str(family.endpoints),
        str(family.syncs),
        str(family.drift_repaired),
    ]


def _build_watch_row(watch: WatchReport) -> list[str]:
    state = "connected" if watch.connected else "NOT CONNECTED"
    if not watch.synced:
        state += ", not listed yet"
    age = "never" if watch.age is None else f"{format_age(watch.age)} ago"
    return [watch.kind, state, age, str(watch.objects), str(watch.bad_objects), str(watch.failures)]


def format_age(seconds: float) -> str:
    """Format a duration in its one or two largest units."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{left}s" if minutes else f"{left}s"


def render_verification(verification: Verification, screen: Screen = PLAIN) -> str:
    """Render differences by family, with their Services."""
    lines: list[str] = []
    for family in verification.families:
        if family.error:
            lines.append(f"✗ {family.family}: cannot be read: {family.error}")
            continue
        count = len(family.differences)
        waiting = f" ({family.pending} changes pending)" if family.pending else ""
        if not count:
            lines.append(f"✓ {family.family}: the kernel matches the desired state{waiting}")
            continue
        noun = "difference" if count == 1 else "differences"
        lines.append(f"✗ {family.family}: {count} {noun}{waiting}")
        lines += [
            f"  {line}"
            for entry in family.differences[:MAX_DIFFERENCES_SHOWN]
            for line in render_difference(entry)
        ]
        if count > MAX_DIFFERENCES_SHOWN:
            lines.append(f"  and {count - MAX_DIFFERENCES_SHOWN} more; -o json lists all")
    return lay_out(lines, screen)


def render_difference(entry: Difference) -> list[str]:
    """Render one difference as a diff: - is what the kernel has, + what it should have."""
    owner = f" ({entry.owner})" if entry.owner else ""
    if (entry.want, entry.have) == (PRESENT, ""):
        return [f"{entry.what}{owner}: missing"]
    lines = [f"{entry.what}{owner}"]
    if entry.have:
        lines.append(f"  - {entry.have}")
    if entry.want:
        lines.append(f"  + {entry.want}")
    return lines
