"""How a watch is doing, for health, metrics and people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WatchStatus:
    """Written by one list-watch, read by anyone. Times are those of the list-watch's clock (monotonic)."""

    connected: bool = False
    synced: bool = False
    """The first complete list has been delivered."""
    absent: bool = False
    """The server does not have (or does not show us) this optional kind; nothing is wrong, nothing is watched."""
    last_event: float | None = None
    """When the server last said anything: an object, a bookmark or a list page."""
    failures: int = 0
    """Failed attempts since the last success."""
    failures_total: int = 0
    last_error: str = ""
    """Kept after a recovery: it says what the last trouble was."""
    lists: int = 0
    """Complete lists so far; more than one means that the server had forgotten our resourceVersion."""
    objects: int = 0
    bad_objects: int = 0

    def heard(self, now: float) -> None:
        self.connected = True
        self.absent = False
        self.failures = 0
        self.last_event = now

    def failed(self, error: str) -> None:
        self.connected = False
        self.failures += 1
        self.failures_total += 1
        self.last_error = error

    def age(self, now: float) -> float | None:
        """Seconds since the server last said anything; None when it never did."""
        return None if self.last_event is None else now - self.last_event
