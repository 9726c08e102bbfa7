"""Pointsman: a kube-proxy that does work in proportion to the change."""

__version__ = "0.1.0"

KUBERNETES_MINOR = 37
"""The minor version of Kubernetes whose kube-proxy we follow: its flags, fields, feature gates and metrics."""
KUBERNETES_VERSION = f"v1.{KUBERNETES_MINOR}"
