"""The Debian package: the tree in /opt/pointsman, a unit, a configuration to start with, manuals and completions."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from scripts.release.source import ROOT, SUMMARY, Source
from scripts.release.tree import PREFIX, SystemPython, compile_command, packages_directory

CONFIGURATION = "/etc/pointsman/config.yaml"
MANIFESTS = "/etc/pointsman/manifests"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/pointsman",
    "zsh": "usr/share/zsh/vendor-completions/_pointsman",
    "fish": "usr/share/fish/vendor_completions.d/pointsman.fish",
}

_POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if [ -n "$2" ]; then systemctl try-restart pointsman.service; fi
fi
"""
"""A first installation starts nothing: a proxy changes the node's network, so an administrator must enable it."""

_PRERM = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now --quiet pointsman.service || true
fi
"""

_POSTRM = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""

_COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: pointsman

Files: *
Copyright: The Pointsman authors
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.

Files: opt/pointsman/lib/*/site-packages/*
Copyright: the authors of each distribution
License: other
 Each distribution in this directory, other than pointsman, has its licence in its .dist-info directory.
"""


class Host(NamedTuple):
    """The system that the package is for: the one it is built on."""

    architecture: str
    python: SystemPython


def this_host() -> Host:
    """Its own Python, not the one of a virtual environment."""
    python = "/usr/bin/python3"
    asked = subprocess.run(
        (python, "-c", "import sys; print(*sys.version_info[:2])"), check=True, capture_output=True, text=True
    )
    major, minor = map(int, asked.stdout.split())
    architecture = subprocess.run(
        ("dpkg", "--print-architecture"), check=True, capture_output=True, text=True
    ).stdout.strip()
    return Host(architecture, SystemPython(python, (major, minor)))


def control(source: Source, host: Host, kilobytes: int) -> str:
    major, minor = host.python.version
    return f"""Package: pointsman
Version: {source.version}
Section: net
Priority: optional
Architecture: {host.architecture}
Maintainer: The Pointsman authors <authors@pointsman.example>
Installed-Size: {kilobytes}
Depends: python3 (>= {major}.{minor}~), python3 (<< {major}.{minor + 1}~)
Recommends: iptables, kmod
Suggests: ipset, nftables
Homepage: https://pointsman.example
Description: {SUMMARY}
 Pointsman turns Services and EndpointSlices, from an API server or from files,
 into nftables, iptables or ipvs rules of this node, as kube-proxy does, and
 says for every packet where it goes and why. Packets never pass through it.
 .
 Services and EndpointSlices go into {MANIFESTS}; then
 "systemctl enable --now pointsman" serves them.
"""


def furnish(tree: Path, source: Source) -> None:
    """Everything around the program; `tree` holds the environment already."""
    _copy(ROOT / "deploy/systemd/pointsman.service", tree / "usr/lib/systemd/system/pointsman.service")
    _copy(ROOT / "deploy/systemd/config.yaml", tree / CONFIGURATION.lstrip("/"))
    (tree / MANIFESTS.lstrip("/")).mkdir(parents=True)
    programs = tree / "usr/bin"
    programs.mkdir(parents=True)
    for program in ("pointsman", "kubectl-pointsman"):
        (programs / program).symlink_to(f"{PREFIX}/bin/{program}")
    documents = tree / "usr/share/doc/pointsman"
    documents.mkdir(parents=True)
    (documents / "copyright").write_text(_COPYRIGHT)
    _compress((ROOT / "CHANGELOG.md").read_bytes(), documents / "changelog.gz")
    shutil.copytree(ROOT / "docs/examples", documents / "examples")
    _document(tree, source)


def _document(tree: Path, source: Source) -> None:
    """The program writes its own manuals and completions: the one inside the tree, on the Python it will have."""
    program = [str(tree / PREFIX.lstrip("/") / "bin/python3")]
    environment = {**source.environment, "PYTHONDONTWRITEBYTECODE": "1"}
    manuals = tree / "usr/share/man/man8"
    manuals.mkdir(parents=True)
    subprocess.run([*program, "-m", "pointsman.cli.manual", str(manuals)], check=True, env=environment)
    for page in sorted(manuals.iterdir()):
        if page.name == "kube-proxy.8":
            page.unlink()  # the package installs no such program on the PATH, and another package may
            continue
        _compress(page.read_bytes(), page.with_name(f"{page.name}.gz"))
        page.unlink()
    for shell, path in COMPLETIONS.items():
        file = tree / path
        file.parent.mkdir(parents=True)
        with file.open("wb") as output:
            command = [*program, "-m", "pointsman", "completion", shell]
            subprocess.run(command, check=True, env=environment, stdout=output)


def pack(tree: Path, source: Source, host: Host, into: Path) -> Path:
    """The package; dpkg-deb sorts names and takes owners and times from nowhere but SOURCE_DATE_EPOCH."""
    packages = packages_directory(tree, host.python)
    compiled = compile_command([host.python.path], [str(packages)], levels=(0, 2))
    prefix = ["-s", str(tree), "-p", "/"]
    subprocess.run([*compiled, *prefix], check=True, env=source.environment)
    debian = tree / "DEBIAN"
    debian.mkdir()
    (debian / "control").write_text(control(source, host, _kilobytes(tree)))
    (debian / "conffiles").write_text(f"{CONFIGURATION}\n")
    for name, text in (("postinst", _POSTINST), ("prerm", _PRERM), ("postrm", _POSTRM)):
        (debian / name).write_text(text)
    _same_modes_and_times(tree, source.epoch)
    for name in ("postinst", "prerm", "postrm"):
        (debian / name).chmod(0o755)
    package = into / f"pointsman_{source.version}_{host.architecture}.deb"
    command = ("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(package))
    subprocess.run(command, check=True, env=source.environment, stdout=subprocess.DEVNULL)
    return package


def _kilobytes(tree: Path) -> int:
    return sum(path.lstat().st_size for path in tree.rglob("*") if not path.is_dir()) // 1024


def _same_modes_and_times(tree: Path, epoch: int) -> None:
    """Whatever the builder's umask and clock are."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.parent.name == "bin"
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _compress(content: bytes, target: Path) -> None:
    target.write_bytes(gzip.compress(content, mtime=0))
