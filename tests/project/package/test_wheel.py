"""What users install is complete: the wheel runs in an environment that holds its declared dependencies and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pointsman import __version__
from pointsman.cli.main import main

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs/examples/shop"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist; the wheel is made from the sdist, as installers do it."""
    directory = tmp_path_factory.mktemp("dist")
    _build(ROOT, directory, "sdist")
    unpacked = tmp_path_factory.mktemp("sdist")
    (archive,) = directory.glob("*.tar.gz")
    subprocess.run(("tar", "-xf", str(archive), "-C", str(unpacked)), check=True)
    (source,) = unpacked.iterdir()
    _build(source, directory, "wheel")
    return directory


def _build(source: Path, directory: Path, target: str) -> None:
    command = (sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(directory))
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the wheel and links to its dependencies."""
    directory = tmp_path_factory.mktemp("venv")
    venv.create(directory, with_pip=True)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    for requirement in distribution("pointsman").requires or ():
        _link(Requirement(requirement).name, packages)
    (wheel,) = built.glob("*.whl")
    done = _run(directory / "bin", "pip", "install", "--no-index", "--disable-pip-version-check", str(wheel))
    assert done.returncode == 0, done.stderr
    return directory / "bin"


def _link(name: str, packages: Path) -> None:
    """Offers one installed distribution, and those it needs, to another environment."""
    found = distribution(name)
    files = [file for file in found.files or () if file.parts[0] != ".."]
    for top in {file.parts[0] for file in files} - {"__pycache__"}:
        link = packages / top
        if link.exists():
            return
        link.symlink_to(Path(str(found.locate_file(top))))
    for text in found.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            _link(requirement.name, packages)


def _run(
    directory: Path, program: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    cleaned = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        (str(directory / program), *arguments),
        cwd=directory,
        env=cleaned | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("optimize", ["0", "2"])
@pytest.mark.parametrize("mode", ["nftables", "iptables", "ipvs"])
def test_the_wheel_renders_an_example(
    installed: Path, mode: str, optimize: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """PYTHONOPTIMIZE=2, which image and unit set, drops docstrings and assertions; nothing may depend on them."""
    arguments = ["render", f"--proxy-mode={mode}", f"--manifests={EXAMPLES}", "--node=node-a"]
    done = _run(installed, "pointsman", *arguments, PYTHONOPTIMIZE=optimize)
    assert done.returncode == 0, done.stderr
    assert main(arguments) == 0
    assert done.stdout == capsys.readouterr().out


@pytest.mark.parametrize("optimize", ["0", "2"])
@pytest.mark.parametrize("program", ["pointsman", "kube-proxy"])
def test_the_installed_programs_tell_their_version(installed: Path, program: str, optimize: str) -> None:
    done = _run(installed, program, "--version", PYTHONOPTIMIZE=optimize)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Pointsman {__version__} ")


def test_help_is_complete_without_docstrings(installed: Path) -> None:
    plain, optimized = (_run(installed, "pointsman", "--help", PYTHONOPTIMIZE=level) for level in "02")
    assert plain.stdout == optimized.stdout
    commands = re.findall(r"^  ([a-z]+) ", plain.stdout, re.MULTILINE)
    assert {"run", "render", "explain"} <= set(commands)
    for command in commands:
        plain, optimized = (
            _run(installed, "pointsman", command, "--help", PYTHONOPTIMIZE=level) for level in "02"
        )
        assert plain.stdout == optimized.stdout, command


def test_the_wheel_holds_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("pointsman/")}
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    assert held == wanted
