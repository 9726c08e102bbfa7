"""/healthz, /livez and /readyz as views of the condition board.

The JSON of /healthz and /livez is kube-proxy's; `reason`, `waitingFor` and `leaving` are additions. /readyz has one line
per condition that blocks readiness, in the form of Kubernetes' own verbose health pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from pointsman.conditions import (
    NODE_ELIGIBLE,
    RUNNING,
    STARTED,
    Blocks,
    Condition,
    ConditionBoard,
    sync_progress_type,
)
from pointsman.model.addresses import Family
from pointsman.serve.messages import Response, reply, text_response

Nanoseconds = int

_SECOND = 1_000_000_000
_NEVER = "0001-01-01T00:00:00Z"


def format_rfc3339_nano(moment: Nanoseconds | None) -> str:
    """Format a Unix time in UTC as Go does in JSON: no trailing zeros, the zero time for None."""
    if moment is None:
        return _NEVER
    seconds, fraction = divmod(moment, _SECOND)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    digits = f"{fraction:09d}".rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"


class HealthView:
    """Answers probes from the board; `last_updated` has the time of each family's last successful sync."""

    def __init__(
        self,
        board: ConditionBoard,
        last_updated: Mapping[Family, Nanoseconds],
        wall: Callable[[], Nanoseconds] = time.time_ns,
    ) -> None:
        self._board = board
        self._last_updated = last_updated
        self._wall = wall

    def healthz(self) -> Response:
        """Answer load balancers: should they choose this node?"""
        conditions = self._board.current()
        blocking = {one.type for one in conditions if one.does_block(Blocks.TRAFFIC)}
        return self._respond(
            conditions,
            is_good=not blocking,
            is_healthy=not blocking - {NODE_ELIGIBLE, RUNNING},
            extra={"nodeEligible": NODE_ELIGIBLE not in blocking},
        )

    def livez(self) -> Response:
        """Answer the kubelet: would a restart help?"""
        conditions = self._board.current()
        is_live = not any(one.does_block(Blocks.LIVENESS) for one in conditions)
        return self._respond(conditions, is_good=is_live, is_healthy=is_live, extra={})

    def readyz(self) -> Response:
        """Answer whether this node serves its packets; the body names every condition that could block that."""
        conditions = [one for one in self._board.current() if one.blocks.includes(Blocks.READINESS)]
        is_ready = all(one.is_true for one in conditions)
        lines = [
            f"[+]{one.type} ok" if one.is_true else f"[-]{one.type} failed: {one.text}" for one in conditions
        ]
        lines.append(f"readyz check {'passed' if is_ready else 'failed'}")
        return text_response("\n".join(lines) + "\n", 200 if is_ready else 503)

    def _respond(
        self,
        conditions: Sequence[Condition],
        *,
        is_good: bool,
        is_healthy: bool,
        extra: Mapping[str, object],
    ) -> Response:
        now = self._wall()
        by_type = {one.type: one for one in conditions}
        # Old clients read lastUpdated as "the loop ran lately": a good answer has the current time, as kube-proxy's does.
        last_updated = now if is_good else max(self._last_updated.values(), default=None)
        document: dict[str, object] = {
            "lastUpdated": format_rfc3339_nano(last_updated),
            "currentTime": format_rfc3339_nano(now),
            **extra,
            "healthy": is_healthy,
        }
        families = {
            family.value: self._describe_family(family, by_type[sync_progress_type(family)])
            for family in Family
            if sync_progress_type(family) in by_type
        }
        if families:
            document["status"] = families
        started, running = by_type.get(STARTED), by_type.get(RUNNING)
        if started is not None and started.does_block(Blocks.TRAFFIC):
            document["waitingFor"] = started.message.removeprefix("waiting for ")
        if running is not None and not running.is_true:
            document["leaving"] = True
        return reply(msgspec.json.encode(document), "application/json", 200 if is_good else 503)

    def _describe_family(self, family: Family, progress: Condition) -> dict[str, object]:
        return {
            "lastUpdated": format_rfc3339_nano(self._last_updated.get(family)),
            "healthy": progress.is_true,
            **({} if progress.is_true else {"reason": progress.message}),
        }
