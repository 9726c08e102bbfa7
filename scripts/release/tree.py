"""Pointsman as a directory: a virtual environment of its own in /opt/pointsman, on a Python that the system brings.

Debian packages and images hold the same tree. One directory of packages serves several versions of Python, because extension
modules bear version and architecture in their names (`_core.cpython-311-x86_64-linux-gnu.so`): an interpreter imports
its own. Nothing in the tree depends on when, where or by which Python it was made.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from scripts.release.source import PROJECT, ROOT, Source

PREFIX = "/opt/pointsman"
PACKAGES = f"{PREFIX}/lib/site-packages"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture, and the kernel's, which wheels use."""
PROGRAMS: dict[str, str] = PROJECT["scripts"]
"""Each with its module and function, as installers read them."""
_INSTALLERS_ONLY = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


def find_packages(tree: Path) -> Path:
    return tree / PACKAGES.lstrip("/")


def build_wheel(into: Path, source: Source, targets: Sequence[str] = ("wheel",)) -> Path:
    """Return the wheel; the same bytes whenever it is built, as hatchling takes SOURCE_DATE_EPOCH."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(into)]
    for target in targets:
        command += ["--target", target]
    subprocess.run(command, check=True, env=source.environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    (wheel,) = into.glob("*.whl")
    return wheel


def build_tree(
    tree: Path, architecture: str, pythons: Sequence[str], interpreter: str, wheel: Path, source: Source
) -> None:
    """The environment with the dependencies of the lock, checked by hash, and the wheel; no compiler is needed."""
    packages = find_packages(tree)
    packages.mkdir(parents=True)
    for python in pythons:
        with tempfile.TemporaryDirectory() as directory:
            _download(Path(directory), architecture, python, source)
            for path in sorted(Path(directory).iterdir()):
                unpack_wheel(path, packages)
    unpack_wheel(wheel, packages)
    for information in packages.glob("*.dist-info"):
        for name in _INSTALLERS_ONLY:
            (information / name).unlink(missing_ok=True)
    add_programs(tree, pythons, interpreter)


def _download(into: Path, architecture: str, python: str, source: Source) -> None:
    machine = MACHINES[architecture]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--dest", str(into), "--only-binary", ":all:", "--no-deps", "--require-hashes"),
        *("--implementation", "cp", "--python-version", python),
        *("--platform", f"manylinux2014_{machine}", "--platform", f"manylinux_2_28_{machine}"),
        *("--requirement", str(ROOT / "requirements/run.txt")),
    ]
    done = subprocess.run(command, check=False, env=source.environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the pinned packages for {architecture}, Python {python}: {done.stderr.strip()}")


def unpack_wheel(wheel: Path, packages: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if any(name.split("/")[0].endswith(".data") for name in archive.namelist()):
            raise RuntimeError(f"{wheel.name}: files outside of site-packages are not supported")
        archive.extractall(packages)


def add_programs(tree: Path, pythons: Sequence[str], interpreter: str) -> None:
    """Around the packages: what makes them an environment, and the programs."""
    home = tree / PREFIX.lstrip("/")
    for python in pythons:
        library = home / "lib" / f"python{python}"
        library.mkdir()
        (library / "site-packages").symlink_to("../site-packages")
    programs = home / "bin"
    programs.mkdir()
    for name in ("python", "python3"):
        (programs / name).symlink_to(interpreter)
    (home / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(interpreter)}\ninclude-system-site-packages = false\n"  # noqa: PTH120  not a path of this machine
    )
    for name, entry in PROGRAMS.items():
        module, function = entry.split(":")
        program = programs / name
        program.write_text(
            f"#!{PREFIX}/bin/python3\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        )
        program.chmod(0o755)
