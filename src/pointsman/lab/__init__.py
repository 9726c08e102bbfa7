"""A small cluster of network namespaces inside one process, with real packets. For `pointsman demo` and the tests.

Nothing is named in the file system: a namespace lives as long as a file descriptor of this process, so the cluster is
removed with the process even after SIGKILL. A host is added in hosts.py; cluster.py wires it from there, and the pictures
in hosts.py and picture.py must show it.
"""

from __future__ import annotations

from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import HOSTS, Host
from pointsman.lab.netns import LabUnavailable
from pointsman.lab.probe import Outcome, Probe, run_probes

__all__ = ["HOSTS", "Cluster", "Host", "LabUnavailable", "Outcome", "Probe", "run_probes"]
