"""A first file system that mounts the machine's own, read-only with a layer in memory on top, and goes on there."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

from tests.kernel.qemu.debian import Kernel

_MODULES: Final = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_rng")
_INIT: Final = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /machine /memory /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs devtmpfs /dev
exec >/dev/console 2>&1
for module in /modules/*; do /bin/busybox insmod "$module"; done
shared=trans=virtio,version=9p2000.L,msize=512000
/bin/busybox mount -t 9p -o $shared,cache=loose,ro machine /machine
/bin/busybox mount -t tmpfs -o size=75% tmpfs /memory
/bin/busybox mkdir -p /memory/changes /memory/work
/bin/busybox mount -t overlay -o lowerdir=/machine,upperdir=/memory/changes,workdir=/memory/work overlay /root
/bin/busybox mkdir -p /root/mnt
/bin/busybox mount -t 9p -o $shared exchange /root/mnt
exec /bin/busybox switch_root /root /mnt/init
"""


def initramfs(kernel: Kernel) -> bytes:
    """A compressed cpio archive for this kernel."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("busybox is not installed (Debian: apt install busybox-static)")
    archive = _Archive()
    archive.file("init", _INIT.encode(), 0o755)
    archive.directory("bin")
    archive.file("bin/busybox", Path(busybox).read_bytes(), 0o755)
    archive.directory("modules")
    for number, module in enumerate(_needed_modules(kernel)):
        archive.file(f"modules/{number:02d}-{module.name.split('.')[0]}.ko", _plain(module), 0o644)
    return gzip.compress(archive.finished(), compresslevel=1)


def _needed_modules(kernel: Kernel) -> list[Path]:
    """The files of the modules that lead to the machine's file system, each after those it needs; built-in ones are none."""
    prefix = (
        kernel.modules.parents[2] if kernel.modules.parents[1].name == "lib" else kernel.modules.parents[3]
    )
    listed = subprocess.run(
        ["modprobe", "-d", prefix, "-S", kernel.release, "--show-depends", "-a", *_MODULES],
        capture_output=True,
        text=True,
        check=True,
    )
    words = (line.split() for line in listed.stdout.splitlines())
    return [Path(name) for name in dict.fromkeys(line[1] for line in words if line[0] == "insmod")]


def _plain(module: Path) -> bytes:
    data = module.read_bytes()
    return lzma.decompress(data) if module.suffix == ".xz" else data


class _Archive:
    """cpio in the form the kernel unpacks (newc)."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._number = 0

    def directory(self, name: str) -> None:
        self._entry(name, b"", stat.S_IFDIR | 0o755)

    def file(self, name: str, data: bytes, mode: int) -> None:
        self._entry(name, data, stat.S_IFREG | mode)

    def finished(self) -> bytes:
        self._entry("TRAILER!!!", b"", 0)
        return b"".join(self._parts)

    def _entry(self, name: str, data: bytes, mode: int) -> None:
        self._number += 1
        path = os.fsencode(name) + b"\0"
        fields = (self._number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        self._parts += [_padded(header + path), _padded(data)]


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
