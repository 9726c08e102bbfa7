"""Benchmarks that need a kernel with ip_vs run themselves again inside User-mode Linux, and bring their results out."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.uml import boot

ROOT = Path(__file__).resolve().parents[1]


def results_of(
    module: str,
    arguments: Sequence[str],
    *,
    option: str,
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """What the module wrote to the JSON file that `option` names; ends the program where it wrote none."""
    reason = boot.missing()
    if reason:
        sys.exit(f"cannot boot User-mode Linux: {reason}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        found = Path(directory) / "results.json"
        settings = [f"{name}={value}" for name, value in (environment or {}).items()]
        command = ["env", *settings, sys.executable, "-m", module, *arguments, option, str(found)]
        status, console = boot.run(
            f"cd {shlex.quote(str(ROOT))}\n{shlex.join(command)}\n", timeout=timeout, memory="4G"
        )
        if status or not found.exists():
            sys.exit(f"failed inside User-mode Linux (status {status}):\n{console}")
        return json.loads(found.read_text())
