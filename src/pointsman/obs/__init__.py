"""Logs and metrics, in the formats and under the names that Kubernetes components have.

Promises: a log line is one line whatever a message holds, free of credentials, and cannot fail its caller; every metric
of kube-proxy has its name, type, labels and buckets. Nothing here is global but the log: a run makes its own `Metrics`.

A change that adds a metric must also add its row to docs/metrics.md; one that adds a field which may hold a credential
must also add it to `redact`.
"""

from __future__ import annotations

import enum


class MetricGroup(enum.Enum):
    """Metrics that kube-proxy exposes in some modes only. A mode names its groups; Prometheus is not loaded for that."""

    FULL_AND_PARTIAL_SYNCS = enum.auto()
    RESTORE_FAILURES = enum.auto()
    IPTABLES_RULES = enum.auto()
    NFTABLES = enum.auto()
