"""Pointsman: a kube-proxy that does work in proportion to the change."""

__version__ = "0.1.0"
