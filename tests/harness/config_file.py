"""Configuration files in tests."""

from __future__ import annotations

from pointsman.config.load import load
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import ConfigError


def config_from_bytes(data: bytes) -> KubeProxyConfiguration:
    """Return the defaulted configuration; ConfigError when a field cannot be read. Warnings are dropped."""
    loaded = load(data)
    if loaded.problems:
        raise ConfigError(loaded.problems)
    return loaded.config
