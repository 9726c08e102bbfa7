"""Reloads of the configuration file since the process started, for `status`, the metric and the condition."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from pointsman.conditions import Blocks, Condition
from pointsman.config.reload import Decision, Live, Rejected, Restart
from pointsman.report.status import ReloadReport


class ReloadRecord:
    """Outlives the proxies of the process, so that counts continue after a restart inside it."""

    def __init__(self) -> None:
        self.since = time.time()
        """When the process began."""
        self._results = {"applied": 0, "restarted": 0, "rejected": 0}
        self._error = ""
        self._read_at: float | None = None

    def on_decision(self, decision: Decision) -> None:
        self._read_at = time.time()
        self._error = ""
        match decision:
            case Rejected(reason=reason):
                self.on_rejected(reason)
            case Live():
                self._results["applied"] += 1
            case Restart():
                self._results["restarted"] += 1

    def on_rejected(self, reason: str) -> None:
        """By the decision, or later because it does not work on this node."""
        self._error = reason
        self._results["rejected"] += 1

    def report(self) -> ReloadReport:
        count = self._results["applied"] + self._results["restarted"]
        age = None if self._read_at is None else time.time() - self._read_at
        return ReloadReport(count, self._error, age)

    def measure(self) -> Mapping[tuple[str, ...], float]:
        """Return the number of reloads by result: a counter."""
        return {(result,): count for result, count in self._results.items()}

    def conditions(self) -> Iterator[Condition]:
        if self._error:
            message = f"the new configuration is not used: {self._error}"
            yield Condition.false("Configuration", "ReloadRejected", message, blocks=Blocks.SERVICES)
        else:
            yield Condition.true("Configuration", Blocks.SERVICES)
