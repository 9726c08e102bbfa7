"""How the configuration file has been doing since the process started: for `status` and metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from pointsman.conditions import Blocks, Condition
from pointsman.config.reload import Decision, Live, Rejected, Restart
from pointsman.obs.registry import Metrics
from pointsman.report.status import ReloadReport


class ReloadRecord:
    """Outlives the proxies: the metrics of each new one continue the counts."""

    def __init__(self) -> None:
        self.since = time.time()
        """When the process began."""
        self.count = 0
        """Configurations taken over."""
        self._error = ""
        self._read_at: float | None = None
        self._results = Counter({"applied": 0, "restarted": 0, "rejected": 0})
        self._metrics: Metrics | None = None

    def continue_in(self, metrics: Metrics) -> None:
        self._metrics = metrics
        for result, count in self._results.items():
            metrics.process.config_reloads.labels(result=result).inc(count)

    def decided(self, decision: Decision) -> None:
        self._read_at = time.time()
        self._error = ""
        match decision:
            case Rejected(reason=reason):
                self.rejected(reason)
            case Live():
                self._taken_over("applied")
            case Restart():
                self._taken_over("restarted")

    def rejected(self, reason: str) -> None:
        """By the decision, or later by the machine."""
        self._error = reason
        self._note("rejected")

    def report(self) -> ReloadReport:
        age = None if self._read_at is None else time.time() - self._read_at
        return ReloadReport(self.count, self._error, age)

    def conditions(self) -> Iterator[Condition]:
        if self._error:
            message = f"the new configuration is not used: {self._error}"
            yield Condition.false("Configuration", "ReloadRejected", message, blocks=Blocks.SERVICES)
        else:
            yield Condition.true("Configuration", Blocks.SERVICES)

    def _taken_over(self, result: str) -> None:
        self.count += 1
        self._note(result)

    def _note(self, result: str) -> None:
        self._results[result] += 1
        if self._metrics is not None:
            self._metrics.process.config_reloads.labels(result=result).inc()
