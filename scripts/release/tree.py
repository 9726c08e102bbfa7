"""Pointsman as a directory: a virtual environment of its own in /opt/pointsman, on a Python that the system brings.

The Debian package and the image hold the same tree, and the unit file and the image's PATH name the same programs.
Nothing in it depends on when or where it was made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.release.source import ROOT, Source

PREFIX = "/opt/pointsman"
PROGRAMS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
"""Each with its module and function, as installers read them."""


class SystemPython(NamedTuple):
    """The interpreter that the tree will run on."""

    path: str
    version: tuple[int, int]

    @property
    def short(self) -> str:
        return "{}.{}".format(*self.version)


def packages_directory(tree: Path, python: SystemPython) -> Path:
    return tree / PREFIX.lstrip("/") / "lib" / f"python{python.short}" / "site-packages"


def build_wheel(into: Path, source: Source, targets: Sequence[str] = ("wheel",)) -> None:
    """The same bytes whenever it is built: hatchling takes SOURCE_DATE_EPOCH."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(into)]
    for target in targets:
        command += ["--target", target]
    _run(command, source, cwd=ROOT)


def install_pinned(directory: Path, python: SystemPython, wheel: Path, source: Source) -> None:
    """The dependencies of the lock, checked by hash, and the wheel; only what was built before, for that Python."""
    target = [
        *("--target", str(directory), "--no-compile", "--only-binary", ":all:", "--quiet"),
        *("--python-version", python.short, "--implementation", "cp", "--disable-pip-version-check"),
    ]
    pip = [sys.executable, "-m", "pip", "install"]
    lock = str(ROOT / "requirements/run.txt")
    _run([*pip, *target, "--no-deps", "--require-hashes", "--requirement", lock], source)
    shutil.rmtree(directory / "bin", ignore_errors=True)
    _run([*pip, *target, "--no-deps", "--no-index", str(wheel)], source)


def complete(tree: Path, python: SystemPython) -> None:
    """Around installed packages: the environment's own files, and nothing that only installers need."""
    home = tree / PREFIX.lstrip("/")
    packages = packages_directory(tree, python)
    for leftover in ("bin", "__pycache__"):
        shutil.rmtree(packages / leftover, ignore_errors=True)
    for information in packages.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            (information / name).unlink(missing_ok=True)
    programs = home / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3"):
        (programs / name).symlink_to(python.path)
    (home / "pyvenv.cfg").write_text(
        f"home = {os.path.dirname(python.path)}\n"  # noqa: PTH120  a path of the target, not of this machine
        f"include-system-site-packages = false\nversion = {python.short}\n"
    )
    for name, entry in PROGRAMS.items():
        module, function = entry.split(":")
        program = programs / name
        program.write_text(
            f"#!{PREFIX}/bin/python3\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        )
        program.chmod(0o755)


def compile_command(
    interpreter: Sequence[str], directories: Sequence[str], levels: Sequence[int]
) -> list[str]:
    """Compile without time stamps, by the hash of the source, which is not checked: installed files are not edited."""
    command = [*interpreter, "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    for level in levels:
        command += ["-o", str(level)]
    return [*command, *directories]


def _run(command: Sequence[str], source: Source, cwd: Path | None = None) -> None:
    subprocess.run(command, check=True, env=source.environment, cwd=cwd)
