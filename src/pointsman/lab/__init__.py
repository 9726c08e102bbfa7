"""A small cluster of network namespaces inside one process, to see a Service proxy at work with real packets.

`pointsman demo` shows it, the end-to-end tests measure with it. Nothing is named in the file system: a namespace
lives as long as a file descriptor of this process, so the whole cluster vanishes with the process, however that
ends.
"""

from __future__ import annotations

from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import HOSTS, Host
from pointsman.lab.netns import LabUnavailable
from pointsman.lab.probe import Outcome, Probe, run_probes

__all__ = ["HOSTS", "Cluster", "Host", "LabUnavailable", "Outcome", "Probe", "run_probes"]
