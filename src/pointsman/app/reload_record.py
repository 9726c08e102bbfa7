"""Reloads of the configuration file since the process started, for `status`, the metric, the condition and the history."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from pointsman.conditions import Blocks, Condition
from pointsman.config.reload import Decision, Live, Rejected, Restart
from pointsman.model.history import EventKind
from pointsman.node.history import History
from pointsman.node.service_changes import MAX_NAMED
from pointsman.report.status import ReloadReport


class ReloadRecord:
    """Outlives the proxies of the process, so that counts and the history continue after a restart inside it."""

    def __init__(self) -> None:
        self.since = time.time()
        """When the process began."""
        self.history = History()
        self._results = {"applied": 0, "restarted": 0, "rejected": 0}
        self._error = ""
        self._read_at: float | None = None

    def on_decision(self, decision: Decision) -> None:
        self._read_at = time.time()
        self._error = ""
        match decision:
            case Rejected(reason=reason):
                self.on_rejected(reason)
            case Live(changes=changes):
                self._results["applied"] += 1
                self.history.add(EventKind.CONFIGURATION_APPLIED, names=tuple(map(str, changes[:MAX_NAMED])))
            case Restart(changes=changes):
                self._results["restarted"] += 1
                self.history.add(EventKind.RESTARTED, names=tuple(map(str, changes[:MAX_NAMED])))

    def on_rejected(self, reason: str) -> None:
        """Note a rejection by the decision, or later because the configuration does not work on this node."""
        self._error = reason
        self.history.add(EventKind.CONFIGURATION_REJECTED, error=reason)
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
