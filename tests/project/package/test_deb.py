"""The Debian package: what is in it, and that the same tree gives the same bytes. `make package` installs and runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from scripts.release import deb, sbom
from scripts.release.package import write_checksums
from scripts.release.source import Source
from scripts.release.tree import SystemPython, complete, packages_directory
from tests.project.test_lock import _versions as locked_versions

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")

SOURCE = Source("9.8.7", "0123abc", 1_700_000_000)
HOST = deb.Host("amd64", SystemPython(os.path.realpath(sys.executable), sys.version_info[:2]))
INSTALLED = Path(sysconfig.get_path("purelib"))


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree that borrows the packages of this environment while it writes manuals, and then has a small one."""
    tree = tmp_path_factory.mktemp("deb") / "tree"
    packages = packages_directory(tree, HOST.python)
    packages.mkdir(parents=True)
    complete(tree, HOST.python)
    packages.rmdir()
    packages.symlink_to(INSTALLED)
    deb.furnish(tree, SOURCE)
    packages.unlink()
    (packages / "pointsman").mkdir(parents=True)
    (packages / "pointsman/__init__.py").write_text('"""Words that level 2 drops."""\n\nNUMBER = {1, 2, 3}\n')
    return tree


@pytest.fixture(scope="module")
def package(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("first") / "tree"
    shutil.copytree(furnished, copy, symlinks=True)
    return deb.pack(copy, SOURCE, HOST, copy.parent)


def test_install_and_enable_is_all_there_is_to_do(package: Path, tmp_path: Path) -> None:
    subprocess.run(("dpkg-deb", "--raw-extract", str(package), str(tmp_path)), check=True)
    held = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert {
        "etc/pointsman/config.yaml",
        "etc/pointsman/manifests",
        "opt/pointsman/bin/pointsman",
        "opt/pointsman/bin/kube-proxy",
        "opt/pointsman/pyvenv.cfg",
        "usr/bin/pointsman",
        "usr/lib/systemd/system/pointsman.service",
        "usr/share/bash-completion/completions/pointsman",
        "usr/share/doc/pointsman/copyright",
        "usr/share/doc/pointsman/examples/shop/working.yaml",
        "usr/share/fish/vendor_completions.d/pointsman.fish",
        "usr/share/man/man8/pointsman.8.gz",
        "usr/share/man/man8/pointsman-explain.8.gz",
        "usr/share/zsh/vendor-completions/_pointsman",
    } <= held
    for program in ("pointsman", "kubectl-pointsman"):
        assert (tmp_path / "usr/bin" / program).readlink() == Path("/opt/pointsman/bin") / program
    for link in (tmp_path / "usr/bin").iterdir():
        assert (tmp_path / str(link.readlink()).lstrip("/")).is_file(), link.name
    assert (tmp_path / "DEBIAN/conffiles").read_text() == "/etc/pointsman/config.yaml\n"
    unit = (tmp_path / "usr/lib/systemd/system/pointsman.service").read_text()
    assert "--config /etc/pointsman/config.yaml" in unit
    assert "--manifests /etc/pointsman/manifests" in unit
    for script in ("postinst", "prerm", "postrm"):
        subprocess.run(("sh", "-n", str(tmp_path / "DEBIAN" / script)), check=True)


def test_it_asks_for_the_python_its_packages_were_built_for(package: Path) -> None:
    def field(name: str) -> str:
        return subprocess.run(
            ("dpkg-deb", "--field", str(package), name), check=True, capture_output=True, text=True
        ).stdout.strip()

    major, minor = HOST.python.version
    assert field("Version") == "9.8.7"
    assert field("Depends") == f"python3 (>= {major}.{minor}~), python3 (<< {major}.{minor + 1}~)"


def test_everybody_may_read_it_and_only_root_owns_it(package: Path) -> None:
    listing = subprocess.run(
        ("dpkg-deb", "--contents", str(package)), check=True, capture_output=True, text=True
    )
    for line in listing.stdout.splitlines():
        mode, owner, *_ = line.split()
        assert owner == "root/root"
        assert mode in ("drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x", "lrwxrwxrwx"), line


def test_the_same_tree_gives_the_same_bytes(furnished: Path, package: Path, tmp_path: Path) -> None:
    """Whatever the clock, the umask and the place say."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(furnished, copy, symlinks=True)
    for path in copy.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700)
            os.utime(path, (1, 1_800_000_000))
    assert deb.pack(copy, SOURCE, HOST, tmp_path).read_bytes() == package.read_bytes()


def test_the_bill_of_materials_lists_what_the_lock_installs() -> None:
    components = sbom.python_components(INSTALLED)
    found = {canonicalize_name(each.name): each.version for each in components}
    version = "{}.{}".format(*sys.version_info)
    assert locked_versions("run", version).items() <= found.items()
    text = sbom.bill(SOURCE, "pointsman.deb", components)
    assert text == sbom.bill(SOURCE, "pointsman.deb", reversed(components))
    document = json.loads(text)
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert document["metadata"]["component"]["version"] == "9.8.7"
    (aiohttp,) = [each for each in document["components"] if each["name"] == "aiohttp"]
    assert aiohttp["purl"] == f"pkg:pypi/aiohttp@{found[canonicalize_name('aiohttp')]}"
    assert aiohttp["licenses"]
    assert {each["bom-ref"] for each in document["components"]} == set(
        document["dependencies"][0]["dependsOn"]
    )


def test_checksums_are_as_sha256sum_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    write_checksums(tmp_path)
    write_checksums(tmp_path)
    done = subprocess.run(
        ("sha256sum", "--check", "SHA256SUMS"), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "a: OK\nb: OK\n"
