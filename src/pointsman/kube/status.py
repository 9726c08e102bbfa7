"""State of a source, for conditions, metrics and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pointsman.model.findings import Finding

OnFinding = Callable[[Finding], None]
"""Called once for each new finding of a source."""


@dataclass(slots=True)
class WatchStatus:
    """Written by one list-watch (or the manifests), read by anyone. Times are those of its clock (monotonic)."""

    connected: bool = False
    synced: bool = False
    """The first complete list has been delivered."""
    absent: bool = False
    """The server lacks this optional kind, or denies access to it; nothing is wrong, nothing is watched."""
    last_event: float | None = None
    """When the server last sent anything: an object, a bookmark or a list page."""
    failures: int = 0
    """Failed attempts since the last success."""
    failures_total: int = 0
    answered: bool = True
    """The server answered the last attempt that failed."""
    last_error: str = ""
    """Kept after a recovery."""
    lists: int = 0
    """Complete lists so far; more than one means that a resourceVersion had expired."""
    objects: int = 0
    rejected: dict[str, Finding] = field(default_factory=dict)
    """What cannot be used now, each under a unique name; removed once it is usable."""
    truncated: int = 0
    """Further ones, beyond the limit of those that are kept."""
    notices: tuple[Finding, ...] = ()
    """About objects that are used."""
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Number of objects by kind that are not used by a proxy."""

    @property
    def bad_objects(self) -> int:
        return len(self.rejected) + self.truncated

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*self.rejected.values(), *self.notices)

    def note_open(self) -> None:
        """Note that the server accepted the request, even if it sent nothing yet."""
        self.connected = True
        self.absent = False
        self.failures = 0

    def note_data(self, now: float) -> None:
        self.note_open()
        self.last_event = now

    def note_failure(self, error: str, *, answered: bool = True) -> None:
        self.connected = False
        self.answered = answered
        self.failures += 1
        self.failures_total += 1
        self.last_error = error

    def age(self, now: float) -> float | None:
        """Return the seconds since the server last sent anything; None when it never did."""
        return None if self.last_event is None else now - self.last_event
