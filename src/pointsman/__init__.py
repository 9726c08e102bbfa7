"""Pointsman: a kube-proxy that programs only what changed, and explains where any packet goes."""

__version__ = "0.1.0"

KUBERNETES_MINOR = 37
"""The minor version of Kubernetes whose kube-proxy we follow: its flags, fields, feature gates and metrics."""
KUBERNETES_VERSION = f"v1.{KUBERNETES_MINOR}"
