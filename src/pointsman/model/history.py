"""Events of the recent past of one proxy, as `pointsman events` and the page show them.

There is no English here: `pointsman.wording.history` makes text from kinds and parameters.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from pointsman.model.findings import Severity, Value


class EventKind(enum.StrEnum):
    """What happened; the value is a CamelCase word for programs."""

    # One Service in one IP family.
    ENDPOINTS_CHANGED = "EndpointsChanged"
    SERVICE_DOWN = "ServiceDown"
    """No frontend delivers any more."""
    SERVICE_PARTIAL = "ServicePartial"
    """Some frontends deliver, others do not."""
    SERVICE_HEALTHY = "ServiceHealthy"
    """Every frontend delivers again."""
    PORTS_ADDED = "PortsAdded"
    PORTS_REMOVED = "PortsRemoved"
    SERVICE_CHANGED = "ServiceChanged"
    """Addresses or settings."""
    MANY_SERVICES = "ManyServicesChanged"
    """More than are kept one by one."""

    # The proxy and its node.
    STARTED = "Started"
    RESTARTED = "Restarted"
    """A new proxy inside the same process."""
    FIRST_SYNC = "FirstSync"
    SYNC_FAILED = "SyncFailed"
    SYNC_RECOVERED = "SyncRecovered"
    RULES_RESTORED = "RulesRestored"
    CONDITION_RAISED = "ConditionRaised"
    CONDITION_CLEARED = "ConditionCleared"
    CONFIGURATION_APPLIED = "ConfigurationApplied"
    CONFIGURATION_REJECTED = "ConfigurationRejected"

    @property
    def severity(self) -> Severity:
        return _SEVERITIES.get(self, Severity.NOTICE)


_SEVERITIES = {
    EventKind.SERVICE_DOWN: Severity.ERROR,
    EventKind.SERVICE_PARTIAL: Severity.WARNING,
    EventKind.RESTARTED: Severity.WARNING,
    EventKind.SYNC_FAILED: Severity.ERROR,
    EventKind.RULES_RESTORED: Severity.WARNING,
    EventKind.CONDITION_RAISED: Severity.WARNING,
    EventKind.CONFIGURATION_REJECTED: Severity.ERROR,
}


class HistoryEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One event, or several of a kind that followed each other closely."""

    at: float
    """Unix time of the first."""
    kind: EventKind
    severity: Severity
    service: str = ""
    """`namespace/name`; empty where it is about the proxy or its node."""
    family: str = ""
    """Empty where it is about both."""
    parameters: Mapping[str, Value] = {}
    """What the text about this kind needs."""
    count: int = 1
    """Number of events that were merged into this one."""
    until: float = 0.0
    """Unix time of the last of them."""
    number: int = 0
    """Identifies it; later ones have higher numbers."""
    revision: int = 0
    """Of the history when it was last changed."""
    message: str = ""
    """What happened, in English."""
