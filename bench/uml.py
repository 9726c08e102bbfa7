"""Benchmarks inside User-mode Linux, for a kernel with ip_vs."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kernel.uml import boot

ROOT = Path(__file__).resolve().parents[1]


def run_in_uml(
    name: str, arguments: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None
) -> Any:
    """Run a benchmark and return its results. Exits with the console's text if there are none."""
    reason = boot.missing()
    if reason:
        sys.exit(f"cannot boot User-mode Linux: {reason}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        found = Path(directory) / "results.json"
        settings = [f"{variable}={value}" for variable, value in (environment or {}).items()]
        command = ["env", *settings, sys.executable, "-m", "bench", name, *arguments, "--json", str(found)]
        status, console = boot.run(
            f"cd {shlex.quote(str(ROOT))}\n{shlex.join(command)}\n", timeout=timeout, memory="4G"
        )
        if status or not found.exists():
            sys.exit(f"failed inside User-mode Linux (status {status}):\n{console}")
        return json.loads(found.read_text())
