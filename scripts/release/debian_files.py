"""The Debian packages under the program: which, in which versions, and what of them an image needs.

deploy/image/packages.ARCHITECTURE.lock pins them by hash, so nothing unexpected gets in and the same lock gives the same files.
Debian takes replaced versions off its servers; when one is gone, `python -m scripts.release.debian_files` pins the present ones.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from scripts.release.oci import AS_THEY_ARE
from scripts.release.source import ROOT
from scripts.release.tree import MACHINES

SUITE = "bookworm"
PYTHON = "python3.11"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org")
PACKAGES = (
    *("libc6", "libgcc-s1", "netbase", "ca-certificates"),
    *(f"{PYTHON}-minimal", f"lib{PYTHON}-minimal", f"lib{PYTHON}-stdlib"),
    *("libssl3", "zlib1g", "libexpat1", "libffi8", "liblzma5", "libbz2-1.0", "libuuid1"),
    *("iptables", "libxtables12", "libip4tc2", "libip6tc2", "libmnl0", "libnftnl11"),
    *("libnetfilter-conntrack3", "libnfnetlink0", "kmod", "libkmod2", "libzstd1"),
)
"""Python with TLS, iptables for the modes that need it, modprobe. No shell, no package manager."""

LEFT_OUT = (
    *("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian"),
    *("usr/share/bug", "usr/share/bash-completion", "usr/share/applications", "usr/share/pixmaps"),
    *("usr/share/binfmts", "usr/share/iptables", "usr/share/initramfs-tools", "var", "etc/init.d"),
    *("etc/ld.so.conf.d", "etc/modprobe.d", "etc/xtables", "usr/lib/*/gconv", "usr/lib/*/audit"),
    *(f"usr/lib/{PYTHON}/{name}" for name in ("distutils", "ensurepip", "lib2to3", "pydoc_data", "unittest")),
    *(f"usr/lib/{PYTHON}/{name}" for name in ("sqlite3", "curses", "dbm", "test", "venv")),
    *(
        f"usr/lib/{PYTHON}/lib-dynload/{name}.cpython-*"
        for name in (
            "_sqlite3",
            "_curses",
            "_curses_panel",
            "_dbm",
            "readline",
            "nis",
            "_crypt",
            "_test*",
            "_ctypes_test",
            "xxlimited*",
        )
    ),
)
"""Documents, other character sets, and parts of Python for which the libraries are not there either."""

_USR_MERGE = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


class Pinned(NamedTuple):
    """One package in one version."""

    name: str
    version: str
    sha256: str
    path: str
    """On the mirror."""


class Gone(RuntimeError):
    """A pinned version is no longer on the mirror, or is not what was pinned."""


def build_lock_path(architecture: str) -> Path:
    return ROOT / f"deploy/image/packages.{architecture}.lock"


def read_pinned(architecture: str) -> list[Pinned]:
    lines = build_lock_path(architecture).read_text().splitlines()
    return [Pinned(*line.split()) for line in lines if line and not line.startswith("#")]


def fetch(package: Pinned, cache: Path) -> Path:
    """The package file, from the cache or the mirror; never one with another hash."""
    file = cache / f"{package.sha256}.deb"
    if not file.exists():
        url = f"{MIRROR}/{package.path}"
        try:
            with urllib.request.urlopen(url, timeout=120) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise Gone(
                f"{url}: {error}; if Debian has replaced it: python -m scripts.release.debian_files"
            ) from error
        if hashlib.sha256(content).hexdigest() != package.sha256:
            raise Gone(f"{url}: has another hash than the lock")
        cache.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return file


def is_wanted(name: str) -> bool:
    """Whether an image needs a file of a package."""
    path = PurePosixPath(name)
    return not any(
        candidate.match(pattern) and len(candidate.parts) == pattern.count("/") + 1
        for candidate in (path, *path.parents)
        for pattern in LEFT_OUT
    )


def move_below_usr(name: str) -> str:
    """Where a file is on a system on which /bin, /sbin and /lib are links into /usr."""
    first, slash, rest = name.partition("/")
    return f"usr/{first}{slash}{rest}" if first in _USR_MERGE else name


def unpack(file: Path, root: Path) -> None:
    """The wanted files; no script of the package is run."""
    process = subprocess.Popen(("dpkg-deb", "--fsys-tarfile", str(file)), stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            name = move_below_usr(member.name.removeprefix("./").rstrip("/"))
            if name not in ("", ".") and is_wanted(name):
                member.name = name
                if member.islnk():
                    member.linkname = move_below_usr(member.linkname.removeprefix("./"))
                tar.extract(member, root, **AS_THEY_ARE)
    if process.wait():
        raise Gone(f"{file} cannot be unpacked")


def write_lock(architecture: str) -> None:
    """Asks apt, which checks Debian's signatures, for the newest versions."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "status").touch()
        (place / "lists/partial").mkdir(parents=True)
        (place / "archives/partial").mkdir(parents=True)
        key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        (place / "sources.list").write_text(
            f"deb {key} {MIRROR}/debian {SUITE} main\n"
            f"deb {key} {MIRROR}/debian {SUITE}-updates main\n"
            f"deb {key} {MIRROR}/debian-security {SUITE}-security main\n"
        )
        options = {
            "Dir::State": directory,
            "Dir::State::status": f"{directory}/status",
            "Dir::State::lists": f"{directory}/lists",
            "Dir::Cache": directory,
            "Dir::Etc::sourcelist": f"{directory}/sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
        subprocess.run([*apt, "-qq", "update"], check=True)
        printed = subprocess.run(
            [*apt, "download", "--print-uris", *PACKAGES], check=True, capture_output=True, text=True
        ).stdout
    found = [_parse_uri_line(line) for line in printed.splitlines()]
    head = "# Written by `python -m scripts.release.debian_files`: package, version, SHA-256, place on the mirror.\n"
    build_lock_path(architecture).write_text(head + "".join(f"{' '.join(each)}\n" for each in sorted(found)))


def _parse_uri_line(line: str) -> Pinned:
    """Parse a line of apt-get: 'URL' file size SHA256:hash."""
    url, file, _, digest = line.split()
    name, version, _ = file.split("_")
    path = url.strip("'").removeprefix(f"{MIRROR}/")
    return Pinned(name, version.replace("%3a", ":"), digest.removeprefix("SHA256:"), path)


if __name__ == "__main__":
    for name in MACHINES:
        write_lock(name)
