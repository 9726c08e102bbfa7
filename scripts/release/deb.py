"""The Debian package: the tree in /opt/pointsman, a unit, a configuration to start with, manuals and completions.

One package for every Debian and Ubuntu whose Python is in PYTHONS. Byte code is made where it is installed, by that system's Python.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.release.source import ROOT, SUMMARY, URLS, VENDOR, Source
from scripts.release.tree import PACKAGES, PREFIX, PYTHONS

CONFIGURATION = "/etc/pointsman/config.yaml"
MANIFESTS = "/etc/pointsman/manifests"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/pointsman",
    "zsh": "usr/share/zsh/vendor-completions/_pointsman",
    "fish": "usr/share/fish/vendor_completions.d/pointsman.fish",
}

_POSTINST = f"""#!/bin/sh
set -e
case "$1" in
configure|triggered)
    {PREFIX}/bin/python3 -m compileall -q -o 0 -o 2 --invalidation-mode unchecked-hash {PACKAGES}
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        if [ -n "$2" ]; then systemctl try-restart pointsman.service; fi
    fi
esac
"""
"""A first installation starts nothing: a proxy changes the node's network, so an administrator must enable it."""

_PRERM = f"""#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now --quiet pointsman.service || true
fi
find {PACKAGES} -name __pycache__ -prune -exec rm -r {{}} +
"""

_POSTRM = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""

_SCRIPTS = {"postinst": _POSTINST, "prerm": _PRERM, "postrm": _POSTRM}
_TRIGGERS = "interest-noawait /usr/bin/python3\n"
"""The system has got another Python: compile for it, and run on it."""

_COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: pointsman

Files: *
Copyright: The Pointsman authors
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.

Files: opt/pointsman/lib/site-packages/*
Copyright: the authors of each distribution
License: other
 Each distribution in this directory, other than pointsman, has its licence in its .dist-info directory.
"""


def build_control(source: Source, architecture: str, kilobytes: int) -> str:
    homepage = f"Homepage: {URLS['Homepage']}\n" if "Homepage" in URLS else ""
    first, last = PYTHONS[0], PYTHONS[-1]
    after = f"3.{int(last.removeprefix('3.')) + 1}"
    return f"""Package: pointsman
Version: {to_debian_version(source.version)}
Section: net
Priority: optional
Architecture: {architecture}
Maintainer: {VENDOR}
Installed-Size: {kilobytes}
Depends: python3 (>= {first}~), python3 (<< {after}~)
Recommends: iptables, kmod
Suggests: ipset, nftables
{homepage}Description: {SUMMARY}
 Pointsman turns Services and EndpointSlices, from an API server or from files,
 into nftables, iptables or ipvs rules of this node, as kube-proxy does, and
 says for every packet where it goes and why. Packets never pass through it.
 .
 Services and EndpointSlices go into {MANIFESTS}; then
 "systemctl enable --now pointsman" serves them.
"""


def to_debian_version(version: str) -> str:
    """Return the version so that a candidate sorts before its release: 0.2.0rc1 becomes 0.2.0~rc1."""
    return re.sub(r"(?<=\d)(?=(a|b|rc)\d)", "~", version)


def add_system_files(tree: Path, source: Source) -> None:
    """Add everything around the program."""
    unit = tree / "usr/lib/systemd/system/pointsman.service"
    _copy(ROOT / "deploy/systemd/pointsman.service", unit)
    if "Documentation" in URLS:
        unit.write_text(
            unit.read_text().replace("man:pointsman(8)", f"man:pointsman(8) {URLS['Documentation']}")
        )
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
    _write_manuals(tree, source)


def _write_manuals(tree: Path, source: Source) -> None:
    """Let the program write its manuals and completions; the one of this repository, as the tree may be for another machine."""
    manuals = tree / "usr/share/man/man8"
    manuals.mkdir(parents=True)
    writer = (sys.executable, "-m", "scripts.release.manual", str(manuals))
    subprocess.run(writer, check=True, env=source.environment, cwd=ROOT)
    for page in sorted(manuals.iterdir()):
        if page.name != "kube-proxy.8":  # the package has no such program, and another package may
            _compress(page.read_bytes(), page.with_name(f"{page.name}.gz"))
        page.unlink()
    for shell, path in COMPLETIONS.items():
        file = tree / path
        file.parent.mkdir(parents=True)
        with file.open("wb") as output:
            command = (sys.executable, "-m", "pointsman", "completion", shell)
            subprocess.run(command, check=True, env=source.environment, stdout=output)


def pack(tree: Path, source: Source, architecture: str, into: Path) -> Path:
    """Return the package; dpkg-deb sorts names and takes owners and times from nowhere but SOURCE_DATE_EPOCH."""
    debian = tree / "DEBIAN"
    debian.mkdir()
    (debian / "control").write_text(build_control(source, architecture, _compute_kilobytes(tree)))
    (debian / "conffiles").write_text(f"{CONFIGURATION}\n")
    (debian / "triggers").write_text(_TRIGGERS)
    for name, text in _SCRIPTS.items():
        (debian / name).write_text(text)
    _normalize_modes_and_times(tree, source.epoch)
    for name in _SCRIPTS:
        (debian / name).chmod(0o755)
    package = (
        into / f"pointsman_{source.version}_{architecture}.deb"
    )  # no tilde, which download sites replace
    command = ("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(package))
    subprocess.run(command, check=True, env=source.environment, stdout=subprocess.DEVNULL)
    return package


def _compute_kilobytes(tree: Path) -> int:
    return sum(path.lstat().st_size for path in tree.rglob("*") if not path.is_dir()) // 1024


def _normalize_modes_and_times(tree: Path, epoch: int) -> None:
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
