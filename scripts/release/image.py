"""`make image`: the container image, without a container daemon and without pulling a base, into dist/; then tries it.

Two layers: the pinned Debian files, and the program in /opt/pointsman. It behaves like the image of deploy/image/Containerfile:
environment, entrypoint and command are read from there.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from scripts.release import debian_files, oci, sbom, trial
from scripts.release.package import write_checksums
from scripts.release.source import DIST, ROOT, SUMMARY, Source, source
from scripts.release.tree import (
    PREFIX,
    SystemPython,
    build_wheel,
    compile_command,
    complete,
    install_pinned,
    packages_directory,
)

CACHE = ROOT / "build/debian"
PYTHON = SystemPython(
    f"/usr/bin/{debian_files.PYTHON}", (3, int(debian_files.PYTHON.removeprefix("python3.")))
)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DIRECTORIES = ("dev", "etc/pointsman", "proc", "root", "run/pointsman", "sys", "tmp", "var/tmp")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\n",
    "etc/group": "root:x:0:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


class Start(NamedTuple):
    """How the program is started in a container."""

    environment: list[str]
    entrypoint: list[str]
    command: list[str]


def start_of(containerfile: str) -> Start:
    """The last ENV, ENTRYPOINT and CMD of a Containerfile; the base's PATH is a system's usual one."""

    def last(word: str) -> str:
        found: list[str] = re.findall(rf"^{word} (.*)$", containerfile, re.MULTILINE)
        return found[-1]

    def quoted(text: str) -> list[str]:
        return re.findall(r'"([^"]*)"', text)

    settings = [setting.replace("$PATH", _SYSTEM_PATH) for setting in shlex.split(last("ENV"))]
    return Start(settings, quoted(last("ENTRYPOINT")), quoted(last("CMD")))


def labels(made_from: Source) -> dict[str, str]:
    prefix = "org.opencontainers.image"
    return {
        f"{prefix}.title": "pointsman",
        f"{prefix}.description": SUMMARY,
        f"{prefix}.version": made_from.version,
        f"{prefix}.revision": made_from.revision,
        f"{prefix}.licenses": "Apache-2.0",
        f"{prefix}.vendor": "The Pointsman authors",
    }


def system(root: Path, architecture: str) -> list[sbom.Component]:
    """The Debian files, and the few that package scripts would have made; what is in them."""
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    packages = debian_files.pinned(architecture)
    for package in packages:
        debian_files.unpack(debian_files.fetch(package, CACHE), root)
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "var/tmp").chmod(0o1777)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    _trust(root)
    for program in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            (root / "usr/sbin" / f"{program}{suffix}").symlink_to(f"{program}-nft{suffix}")
    local = root / "usr/local/bin"
    local.mkdir(parents=True)
    (local / "kube-proxy").symlink_to(f"{PREFIX}/bin/kube-proxy")
    return [
        sbom.Component(
            each.name,
            each.version,
            f"pkg:deb/debian/{each.name}@{each.version}?arch={architecture}&distro={debian_files.SUITE}",
        )
        for each in packages
    ]


def _trust(root: Path) -> None:
    """All of Debian's certificate authorities in the one file that OpenSSL reads."""
    one_by_one = root / "usr/share/ca-certificates"
    certificates = sorted(one_by_one.rglob("*.crt"))
    (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    (root / "etc/ssl/certs/ca-certificates.crt").write_text(
        "".join(path.read_text() for path in certificates)
    )
    for path in certificates:
        path.unlink()
    (root / "usr/lib/ssl").mkdir(parents=True, exist_ok=True)
    (root / "usr/lib/ssl/cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")


def compile_all(root: Path, made_from: Source) -> None:
    """By the image's own Python, at the level that it runs with."""
    as_root = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
    chroot = [*as_root, "chroot", str(root), PYTHON.path]
    library = f"/usr/lib/{debian_files.PYTHON}"
    packages = str(packages_directory(Path("/"), PYTHON))
    environment = {**made_from.environment, "PATH": _SYSTEM_PATH}
    subprocess.run(compile_command(chroot, [library, packages], levels=(2,)), check=True, env=environment)


def build(architecture: str, made_from: Source) -> tuple[bytes, str]:
    """The archive, and the bill of materials of what is inside."""
    with tempfile.TemporaryDirectory() as directory:
        root, wheels = Path(directory) / "root", Path(directory) / "wheels"
        components = system(root, architecture)
        build_wheel(wheels, made_from)
        (wheel,) = wheels.glob("*.whl")
        packages = packages_directory(root, PYTHON)
        install_pinned(packages, PYTHON, wheel, made_from)
        complete(root, PYTHON)
        compile_all(root, made_from)
        components += sbom.python_components(packages)
        below = sorted(path.name for path in root.iterdir() if path.name != "opt")
        layers = (
            oci.layer(root, below, made_from.epoch, f"Debian {debian_files.SUITE}, pinned packages"),
            oci.layer(root, [PREFIX.lstrip("/")], made_from.epoch, f"pointsman {made_from.version}"),
        )
    start = start_of((ROOT / "deploy/image/Containerfile").read_text())
    image = oci.Image(
        "pointsman", made_from.version, architecture, made_from.epoch, labels(made_from), *start
    )
    return oci.archive(image, layers), sbom.bill(made_from, "container image", components)


def main() -> int:
    architecture = subprocess.run(
        ("dpkg", "--print-architecture"), check=True, capture_output=True, text=True
    ).stdout.strip()
    if not debian_files.lock_file(architecture).exists():
        print(
            f"make image: nothing is pinned for {architecture}: python -m scripts.release.debian_files",
            file=sys.stderr,
        )
        return 1
    made_from = source()
    content, bill = build(architecture, made_from)
    DIST.mkdir(exist_ok=True)
    name = f"pointsman-{made_from.version}-image-{architecture}"
    (DIST / f"{name}.tar").write_bytes(content)
    (DIST / f"{name}.cdx.json").write_text(bill)
    write_checksums(DIST)
    print(f"{len(content):>10}  dist/{name}.tar")
    trial.try_image(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
