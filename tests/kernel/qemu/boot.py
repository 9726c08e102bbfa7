"""Boots a kernel in qemu, without hardware help, on the machine's own file system, and runs one shell script in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.kernel.qemu.debian import Kernel
from tests.kernel.qemu.initramfs import initramfs

EMULATOR: Final = "qemu-system-x86_64"
STATUS: Final = "status"
_HERE: Final = Path(__file__).resolve().parent
_KERNEL_OPTIONS: Final = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr norandmaps tsc=reliable no_timer_check rcupdate.rcu_expedited=1"
"""Programs at the same addresses in every process are translated once; waiting for quiet processors is cut short.
The timer is not checked at boot: on a busy machine the check fails and the kernel panics."""


class BootError(Exception):
    """The virtual machine ended without saying how the script did; the message holds the end of its console."""


def missing() -> str | None:
    """Why no kernel can be booted here, or None when it can."""
    for program, package in (
        (EMULATOR, "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("depmod", "kmod"),
    ):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt install {package})"
    if os.geteuid() != 0:
        return "booting on the machine's own file system needs root"
    return None


def run(kernel: Kernel, script: str, exchange: Path, *, timeout: float, memory: str = "4G") -> int:
    """The script's exit status; what it writes to /mnt is found in `exchange`, and the console in `exchange/console`."""
    exchange.mkdir(parents=True, exist_ok=True)
    (exchange / STATUS).unlink(missing_ok=True)
    shutil.copy(_HERE / "init.sh", exchange / "init")
    (exchange / "init").chmod(0o755)
    shutil.copy(_HERE.parent / "uml" / "kernel-modules", exchange / "wanted-modules")
    (exchange / "modules").write_text(str(kernel.modules))
    (exchange / "script").write_text(script)
    first = exchange / "initramfs"
    first.write_bytes(initramfs(kernel))
    command = [
        *("timeout", "--kill-after=5", str(timeout), EMULATOR),
        *("-accel", "tcg,tb-size=1024", "-cpu", "max,la57=off", "-smp", "1", "-m", memory),
        *(
            "-display",
            "none",
            "-monitor",
            "none",
            "-serial",
            f"file:{exchange / 'console'}",
            "-no-reboot",
            "-net",
            "none",
        ),
        *("-kernel", str(kernel.image), "-initrd", str(first)),
        *("-append", _KERNEL_OPTIONS),
        *("-virtfs", "local,path=/,mount_tag=machine,security_model=none,readonly=on,multidevs=remap"),
        *("-virtfs", f"local,path={exchange},mount_tag=exchange,security_model=none"),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if not (exchange / STATUS).exists():
        console = (
            (exchange / "console").read_text(errors="replace") if (exchange / "console").exists() else ""
        )
        raise BootError(f"qemu ended with {done.returncode}: {done.stderr.strip()}\n{console[-4000:]}")
    return int((exchange / STATUS).read_text())
