"""The proxy modes: what each of them does to the kernel, behind one contract."""

from __future__ import annotations

import importlib

from pointsman.backends.contract import Mode
from pointsman.config.mode_table import MODES


def mode_named(name: str) -> Mode:
    """The mode of this name; its package is imported when it is first asked for."""
    found: Mode = importlib.import_module(MODES[name].module).MODE
    return found
