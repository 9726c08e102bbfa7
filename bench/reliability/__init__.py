"""Faults injected into a running proxy while connections are made through it."""
