"""The proxy modes: what each of them does to the kernel, behind one contract.

Promise: the rest of the program identifies a mode by its `Mode` value (`contract`) and by nothing else.

Invariants:
* Compiling a plan is pure and deterministic; only `sync` and `maintain` of a backend change the kernel.
* Memory follows the kernel: a backend commits what the kernel acknowledged, never before.
* A bad object is rejected alone; when most would be, the sync fails before anything is removed.
* Each mode compares the kernel with the desired state in one module, `check`, which reports `Difference`s with their owners.

A change that adds a capability must also say in `Capabilities` (`model/balancing.py`) which modes have it, and planning must
report what a mode lacks. A change that adds kernel state must also compare it, and remove it in clean-up.
"""

from __future__ import annotations

import importlib

from pointsman.backends.contract import Mode
from pointsman.config.mode_table import MODES


def mode_named(name: str) -> Mode:
    """Return the mode of this name; its package is imported on first use."""
    found: Mode = importlib.import_module(MODES[name].module).MODE
    return found
