"""Whether this node serves its packets, check by check: what /readyz answers.

Stricter than /healthz, which keeps to kube-proxy's rules and gives a late proxy two sync periods. Whatever makes that fail
makes a check fail here; besides, a family that failed its last sync is not ready, nor is one whose rules were not yet found
intact after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from pointsman.backends.contract import Difference
from pointsman.model.addresses import Family
from pointsman.serve.health import Health, ProxyHealth
from pointsman.serve.readiness import Check
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import SyncFailed, SyncOutcome

_NOT_YET = "not yet"


class _FamilyState(msgspec.Struct):
    """Why not, of one IP family; empty where all is well."""

    sync: str = _NOT_YET
    drift: str = _NOT_YET


class Readiness(SyncListener):
    """Hears of every sync and every look at the rules; asks the others when it is asked."""

    def __init__(
        self,
        families: Iterable[Family],
        health: ProxyHealth,
        *,
        unserved: Callable[[], Mapping[Family, str]],
        waiting_for: Callable[[], str],
        closed_ports: Callable[[], Mapping[str, str]],
    ) -> None:
        """The callbacks say why: which families are not served, what the first sync still needs, which port is closed."""
        self._families = {family: _FamilyState() for family in families}
        self._datapath: dict[Family, str] = {}
        self._health = health
        self._unserved, self._waiting_for, self._closed_ports = unserved, waiting_for, closed_ports

    def on_synced(self, outcome: SyncOutcome) -> None:
        self._families[outcome.family].sync = ""

    def on_sync_failed(self, family: Family, failure: SyncFailed, _retry_in: float) -> None:
        self._families[family].sync = str(failure)

    def on_drift_check_passed(self, family: Family) -> None:
        self._families[family].drift = ""

    def on_drift(self, family: Family, drift: Difference, _restored_in: float) -> None:
        self._families[family].drift = f"changed by others: {drift}"

    def on_drift_check_failed(self, family: Family, error: Exception) -> None:
        self._families[family].drift = f"cannot be read: {error}"

    def probed(self, family: Family, trouble: str) -> None:
        """What came of a connection through the rules of a family; empty when it was answered."""
        self._datapath[family] = trouble

    def checks(self) -> Iterator[Check]:
        """All of them, in the order in which they come true at a start."""
        waiting = self._waiting_for()
        yield Check("sources-listed", f"waiting for {waiting}" if waiting else "")
        for family, why in self._unserved().items():
            yield Check(f"{family.value}-served", why)
        for family, state in self._families.items():
            yield Check(f"{family.value}-synced", state.sync)
        health = self._health.health()
        for family in self._families:
            late = health.status.get(family)
            yield Check(f"{family.value}-keeping-up", late.reason if late is not None else "")
        for family, state in self._families.items():
            yield Check(f"{family.value}-rules-intact", state.drift)
        for family, trouble in self._datapath.items():
            yield Check(f"{family.value}-datapath", trouble)
        closed = self._closed_ports()
        yield Check("ports-open", "; ".join(f"{name}: {why}" for name, why in closed.items()))
        yield Check("staying", self._why_leaving(health))

    def _why_leaving(self, health: Health) -> str:
        if health.leaving:
            return "the process was told to end"
        return "" if self._health.eligible else "the Node is unknown, gone or on its way out"
