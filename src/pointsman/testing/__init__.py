"""For people who test what they build on Pointsman: a fake API server and a backend that records.

Nothing else in the package imports this one, so that a running proxy never loads it. docs/testing.md shows its use.
"""

from __future__ import annotations

from pointsman.testing.apiserver import FakeApiServer
from pointsman.testing.faults import SeenRequest
from pointsman.testing.kube_objects import endpoint_slice, node, service, service_cidr
from pointsman.testing.recording import RecordingBackend

__all__ = [
    "FakeApiServer",
    "RecordingBackend",
    "SeenRequest",
    "endpoint_slice",
    "node",
    "service",
    "service_cidr",
]
