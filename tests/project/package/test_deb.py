"""The Debian package: what is in it, and that the same tree gives the same bytes. `make package` installs and runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from scripts.release import deb, sbom
from scripts.release.source import Source, staging
from scripts.release.tree import PYTHONS, add_programs, find_packages, unpack_wheel
from tests.project.test_lock import _versions as locked_versions

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")

SOURCE = Source("9.8.7rc1", "0123abc", 1_700_000_000)
INSTALLED = Path(sysconfig.get_path("purelib"))
THIS_PYTHON = "{}.{}".format(*sys.version_info)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a small package instead of the program."""
    tree = tmp_path_factory.mktemp("deb") / "tree"
    packages = find_packages(tree)
    (packages / "pointsman").mkdir(parents=True)
    (packages / "pointsman/__init__.py").write_text("NUMBER = {1, 2, 3}\n")
    add_programs(tree, PYTHONS, os.path.realpath(sys.executable))
    deb.add_system_files(tree, SOURCE)
    return tree


@pytest.fixture(scope="module")
def package(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("first") / "tree"
    shutil.copytree(furnished, copy, symlinks=True)
    return deb.pack(copy, SOURCE, "amd64", copy.parent)


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


def read_field(package: Path, name: str) -> str:
    command = ("dpkg-deb", "--field", str(package), name)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_it_takes_every_python_it_has_extension_modules_for(package: Path) -> None:
    assert read_field(package, "Depends") == "python3 (>= 3.11~), python3 (<< 3.15~)"
    assert read_field(package, "Architecture") == "amd64"


def test_a_candidate_is_older_than_its_release(package: Path) -> None:
    assert read_field(package, "Version") == "9.8.7~rc1"
    assert deb.to_debian_version("9.8.7") == "9.8.7"
    order = ("dpkg", "--compare-versions", "9.8.7~rc1", "lt", "9.8.7")
    assert subprocess.run(order).returncode == 0


def test_extension_modules_of_several_pythons_stand_side_by_side_and_each_finds_its_own(
    tmp_path: Path,
) -> None:
    tree = tmp_path / "tree"
    packages = find_packages(tree)
    packages.mkdir(parents=True)
    for python in ("311", "312"):
        wheel = tmp_path / f"{python}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"one/_core.cpython-{python}-x86_64-linux-gnu.so", python)
            archive.writestr("one/__init__.py", "WHERE = __file__\n")
        unpack_wheel(wheel, packages)
    add_programs(tree, PYTHONS, os.path.realpath(sys.executable))
    assert {path.name for path in (packages / "one").glob("*.so")} == {
        "_core.cpython-311-x86_64-linux-gnu.so",
        "_core.cpython-312-x86_64-linux-gnu.so",
    }
    program = (str(tree / "opt/pointsman/bin/python3"), "-B", "-c", "import one; print(one.WHERE)")
    found = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    assert found.strip() == str(tree / f"opt/pointsman/lib/python{THIS_PYTHON}/site-packages/one/__init__.py")


def test_a_wheel_that_wants_files_elsewhere_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "odd.whl", "w") as archive:
        archive.writestr("odd-1.data/scripts/odd", "")
    with pytest.raises(RuntimeError, match="outside of site-packages"):
        unpack_wheel(tmp_path / "odd.whl", tmp_path)


def test_byte_code_is_made_on_the_target_and_goes_away_with_the_package(
    package: Path, tmp_path: Path
) -> None:
    subprocess.run(("dpkg-deb", "--raw-extract", str(package), str(tmp_path)), check=True)
    assert not list(tmp_path.rglob("*.pyc"))
    for name, arguments in (("postinst", ["triggered", "/usr/bin/python3"]), ("prerm", ["upgrade", "1"])):
        script = (tmp_path / "DEBIAN" / name).read_text()
        script = script.replace("/opt/", f"{tmp_path}/opt/").replace("/run/systemd/system", "/nonexistent")
        subprocess.run(("sh", "-c", script, name, *arguments), check=True)
        compiled = {path.name.partition(".")[2] for path in tmp_path.rglob("*.pyc")}
        tag = sys.implementation.cache_tag
        assert compiled == ({f"{tag}.pyc", f"{tag}.opt-2.pyc"} if name == "postinst" else set())


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
    assert deb.pack(copy, SOURCE, "amd64", tmp_path).read_bytes() == package.read_bytes()


def test_the_bill_of_materials_lists_what_the_lock_installs() -> None:
    components = sbom.list_python_components(INSTALLED)
    found = {canonicalize_name(each.name): each.version for each in components}
    assert locked_versions("run", THIS_PYTHON).items() <= found.items()
    text = sbom.build_bill(SOURCE, "pointsman.deb", "00ff", components)
    assert text == sbom.build_bill(SOURCE, "pointsman.deb", "00ff", reversed(components))
    document = json.loads(text)
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert document["metadata"]["component"]["version"] == "9.8.7rc1"
    assert document["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": "00ff"}]
    (aiohttp,) = [each for each in document["components"] if each["name"] == "aiohttp"]
    assert aiohttp["purl"] == f"pkg:pypi/aiohttp@{found[canonicalize_name('aiohttp')]}"
    assert aiohttp["licenses"]
    assert {each["bom-ref"] for each in document["components"]} == set(
        document["dependencies"][0]["dependsOn"]
    )


def test_what_a_wheel_needs_is_listed_as_not_inside() -> None:
    pinned = sbom.list_pinned_components()
    assert {each.name: each.version for each in pinned} == locked_versions("run", THIS_PYTHON)
    document = json.loads(sbom.build_bill(SOURCE, "pointsman.whl", "00ff", pinned, inside=False))
    assert {each["scope"] for each in document["components"]} == {"excluded"}


def test_what_failed_or_is_stale_is_not_left_for_publishing(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    dist.mkdir()
    for name in ("pointsman-image-1.tar", "pointsman-1.whl", "SHA256SUMS", "SHA256SUMS.sig"):
        (dist / name).touch()

    def build(*, fail: bool) -> None:
        with staging("pointsman-image-*", dist=dist) as directory:
            (directory / "pointsman-image-2.tar").touch()
            if fail:
                raise RuntimeError("no library")

    with pytest.raises(RuntimeError, match="no library"):
        build(fail=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["dist", "pointsman-1.whl"]
    build(fail=False)
    assert {path.name for path in dist.iterdir()} == {"pointsman-1.whl", "pointsman-image-2.tar"}
