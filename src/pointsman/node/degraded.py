"""What works less well than configured: one owner of its metric, its log line and its line in `status`."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.kernel.sysctl import Degraded
from pointsman.obs.log import get_log
from pointsman.obs.registry import Metrics

PORTS = "ports"
"""The source of checks that tells of ports which cannot be opened."""

_log = get_log(__name__)


class DegradedChecks:
    """Each source of checks reports all it finds at once, so that what it no longer names has recovered."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._by_source: dict[str, dict[str, str]] = {}

    @property
    def current(self) -> dict[str, str]:
        """By check: what is the case and what to do about it."""
        return {check: message for found in self._by_source.values() for check, message in found.items()}

    def of(self, source: str) -> dict[str, str]:
        """What one source of checks found last."""
        return self._by_source.get(source, {})

    def report(self, source: str, found: Iterable[Degraded]) -> None:
        before = self.current
        self._by_source[source] = {one.check: one.message for one in found}
        now = self.current
        for check in before.keys() - now.keys():
            self._metrics.degraded.labels(check=check).set(0)
            _log.info("No longer degraded", check=check)
        for check, message in now.items():
            if before.get(check) != message:
                self._metrics.degraded.labels(check=check).set(1)
                _log.warning("Degraded", check=check, reason=message)
