"""Groups of metrics that only some proxy modes have; a mode names those that it exposes."""

from __future__ import annotations

import enum


class MetricGroup(enum.Enum):
    """kube-proxy exposes each of these in the modes that feed it, and nowhere else."""

    FULL_AND_PARTIAL_SYNCS = enum.auto()
    RESTORE_FAILURES = enum.auto()
    IPTABLES_RULES = enum.auto()
    NFTABLES = enum.auto()
