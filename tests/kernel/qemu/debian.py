"""Debian's own kernels, unpacked into a directory of the checkout; nothing is installed, no setting of apt changes.

The machine's package lists name one release of Debian; a kernel of another release comes from the same archive with lists
of its own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, NamedTuple

META_PACKAGE: Final = "linux-image-amd64"


class Kernel(NamedTuple):
    """One unpacked kernel."""

    release: str
    image: Path
    modules: Path
    """The directory that belongs at /lib/modules/RELEASE."""


class _Archive:
    """The machine's Debian archive, asked about one release of it."""

    def __init__(self, suite: str, directory: Path) -> None:
        self._directory = directory
        (directory / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (directory / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        sources = directory / "sources.list"
        sources.write_text(f"deb {_archive_address()} {suite} main\n")
        self._options = [
            f"-oDir::Etc::SourceList={sources}",
            "-oDir::Etc::SourceParts=/dev/null",
            f"-oDir::State::Lists={directory / 'lists'}",
            f"-oDir::Cache={directory / 'cache'}",
            "-oAPT::Sandbox::User=root",
        ]
        self._run("apt-get", "update", "-qq")

    def find_release(self) -> str:
        """Return the release of the newest kernel."""
        prefix = "linux-image-"
        for name in self._list_dependencies(META_PACKAGE):
            if name.startswith(prefix):
                return name.removeprefix(prefix)
        raise LookupError(f"{META_PACKAGE} depends on no kernel")

    def find_packages(self, release: str) -> list[str]:
        """Return the kernel's packages: one up to trixie, later one each for the kernel, its modules and their lists."""
        whole = f"linux-image-{release}"
        parts = {f"linux-{part}-{release}" for part in ("base", "binary", "modules")}
        return sorted(parts.intersection(self._list_dependencies(whole))) or [whole]

    def _list_dependencies(self, package: str) -> list[str]:
        listed = self._run("apt-cache", "depends", package).splitlines()
        return [line.strip().partition(" ")[2] for line in listed if line.strip().startswith("Depends:")]

    def download(self, package: str) -> Path:
        self._run("apt-get", "download", package)
        return next(self._directory.glob(f"{package}_*.deb"))

    def _run(self, program: str, *arguments: str) -> str:
        command = [program, *self._options, *arguments]
        done = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def _archive_address() -> str:
    """Where the machine itself gets Debian's main packages from."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    )
    for line in listed.stdout.splitlines():
        address, _, release = line.partition(" ")
        if release.isalpha():  # not an update or security suite, which have archives or names of their own
            return address
    raise LookupError("apt knows no Debian release here")


def fetched(suite: str, directory: Path) -> Kernel:
    """The newest kernel of a Debian release, downloaded when it is not there yet."""
    place = (directory / suite).resolve()
    archive = _Archive(suite, place)
    release = archive.find_release()
    tree = place / release
    if not tree.is_dir():
        unpacked = place / "unpacked"
        for package in archive.find_packages(release):
            subprocess.run(["dpkg-deb", "--extract", archive.download(package), unpacked], check=True)
        unpacked.rename(tree)
    modules = next(tree.glob(f"*/modules/{release}"), None) or next(tree.glob(f"usr/lib/modules/{release}"))
    if not (modules / "modules.dep").exists():
        _make_dependencies(tree, modules, release)
    image = tree / "boot" / f"vmlinuz-{release}"
    return Kernel(release, image if image.exists() else modules / "vmlinuz", modules)


def _make_dependencies(tree: Path, modules: Path, release: str) -> None:
    """depmod looks below lib/; newer packages have their modules below usr/lib/."""
    if not (tree / "lib").exists():
        (tree / "lib").symlink_to(modules.parent.parent.relative_to(tree))
    subprocess.run(["depmod", "-b", tree, release], check=True)
