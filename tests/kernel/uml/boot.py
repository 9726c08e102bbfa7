"""Boots User-mode Linux on the host's own file system, runs one shell script in it, returns how that ended.

The kernel of a test machine often lacks ip_vs; User-mode Linux (Debian: package user-mode-linux) is a kernel with
all of it that runs as an ordinary process in seconds. Its own exit status says nothing, so the script's status
travels through a file: when that is missing the boot failed, and that is an error, never a pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

KERNEL = "linux.uml"
HERE = Path(__file__).resolve().parent
MODULES = Path("/usr/lib/uml/modules")


class BootError(Exception):
    """User-mode Linux ended without saying how the script did; the message holds its console."""


def missing() -> str | None:
    """Why User-mode Linux cannot be used here, or None when it can."""
    if shutil.which(KERNEL) is None or not MODULES.is_dir():
        return f"{KERNEL} is not installed (Debian: apt install user-mode-linux)"
    if os.geteuid() != 0:
        return "booting on the host's file system needs root"
    if _large_registers() and shutil.which("cc") is None:
        return (
            "this CPU has AMX, which User-mode Linux only survives with a shim that needs a C compiler (cc)"
        )
    return None


def run(script: str, *, timeout: float, memory: str = "2G") -> tuple[int, str]:
    """Exit status and console of `script`, run by /bin/sh as root inside; raises BootError without a status."""
    with tempfile.TemporaryDirectory(prefix="pointsman-uml-", dir="/var/tmp") as name:
        directory = Path(name)
        script_file, status_file = directory / "script", directory / "status"
        script_file.write_text(script)
        command = [
            KERNEL,
            f"mem={memory}",
            "rootfstype=hostfs",
            "rootflags=/",
            "rw",
            f"init={HERE / 'init.sh'}",
            "quiet",
            "con=null",
            "con0=null,fd:1",
            f"uml_dir={directory}/",
            f"POINTSMAN_RUN={script_file}",
            f"POINTSMAN_STATUS={status_file}",
            f"POINTSMAN_CHECKOUT={HERE}",
        ]
        environment = dict(os.environ)
        if _large_registers():
            environment["LD_PRELOAD"] = str(_register_shim(directory))
        done = subprocess.run(
            ["timeout", "--kill-after=5", str(timeout), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if not status_file.exists():
            raise BootError(
                f"no status from User-mode Linux (wrapper status {done.returncode}):\n{done.stdout}"
            )
        return int(status_file.read_text()), done.stdout


def _large_registers() -> bool:
    return " amx_tile" in Path("/proc/cpuinfo").read_text()


def _register_shim(directory: Path) -> Path:
    library = directory / "xstate.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "xstate.c", "-ldl"], check=True)
    return library
