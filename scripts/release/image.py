"""`make image`: images for all architectures, without a container daemon and without pulling a base, into dist/; tries them.

Two layers: the pinned Debian files, and the program in /opt/pointsman. It behaves like the image of deploy/image/Containerfile:
environment, entrypoint and command are read from there.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.release import debian_files, oci, sbom, trial
from scripts.release.package import detect_architecture
from scripts.release.source import ROOT, SUMMARY, URLS, VENDOR, Source, read_source, staging
from scripts.release.tree import MACHINES, PACKAGES, PREFIX, build_tree, build_wheel, find_packages

CACHE = ROOT / "build/debian"
PYTHON = f"/usr/bin/{debian_files.PYTHON}"
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


def parse_start(containerfile: str) -> Start:
    """The last ENV, ENTRYPOINT and CMD of a Containerfile; the base's PATH is a system's usual one."""

    def last(word: str) -> str:
        found: list[str] = re.findall(rf"^{word} (.*)$", containerfile, re.MULTILINE)
        return found[-1]

    def find_quoted(text: str) -> list[str]:
        return re.findall(r'"([^"]*)"', text)

    settings = [setting.replace("$PATH", _SYSTEM_PATH) for setting in shlex.split(last("ENV"))]
    return Start(settings, find_quoted(last("ENTRYPOINT")), find_quoted(last("CMD")))


def build_labels(source: Source) -> dict[str, str]:
    found = {
        "title": "pointsman",
        "description": SUMMARY,
        "version": source.version,
        "revision": source.revision,
        "licenses": "Apache-2.0",
        "vendor": VENDOR,
        "url": URLS.get("Homepage", ""),
        "documentation": URLS.get("Documentation", ""),
        "source": URLS.get("Source", ""),
    }
    return {f"org.opencontainers.image.{name}": text for name, text in found.items() if text}


def build_system(root: Path, architecture: str) -> list[sbom.Component]:
    """The Debian files, and the few that package scripts would have made; what is in them."""
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    packages = debian_files.read_pinned(architecture)
    for package in packages:
        debian_files.unpack(debian_files.fetch(package, CACHE), root)
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "var/tmp").chmod(0o1777)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    _write_authorities(root)
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


def _write_authorities(root: Path) -> None:
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


def compile_all(root: Path, native: Path, source: Source) -> None:
    """Compile for the level that the image runs with, by the Python of this machine's image, whose byte code fits all architectures.

    Without time stamps: the hash of the source stands in each file and is not checked, because images are not edited.
    """
    (loader,) = native.glob("usr/lib/*/ld-linux-*.so.*")
    libraries = ":".join(str(path) for path in native.glob("usr/lib/*-linux-gnu"))
    python = [str(loader), "--library-path", libraries, f"{native}{PYTHON}"]
    command = [*python, "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", "-o", "2"]
    places = [f"{root}/usr/lib/{debian_files.PYTHON}", f"{root}{PACKAGES}"]
    environment = {**source.environment, "PYTHONHOME": f"{native}/usr", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([*command, "-s", str(root), "-p", "/", *places], check=True, env=environment)


class Built(NamedTuple):
    """One image, and what is inside."""

    image: oci.Image
    components: list[sbom.Component]


def build_images(source: Source) -> Iterator[Built]:
    """One image per architecture."""
    start = parse_start((ROOT / "deploy/image/Containerfile").read_text())
    with tempfile.TemporaryDirectory() as directory:
        wheel = build_wheel(Path(directory) / "wheels", source)
        roots = {architecture: Path(directory) / architecture for architecture in MACHINES}
        components = {}
        for architecture, root in roots.items():
            components[architecture] = build_system(root, architecture)
            python = debian_files.PYTHON.removeprefix("python")
            build_tree(root, architecture, [python], PYTHON, wheel, source)
            components[architecture] += sbom.list_python_components(find_packages(root))
        for architecture, root in roots.items():
            compile_all(root, roots[detect_architecture()], source)
            below = sorted(path.name for path in root.iterdir() if path.name != "opt")
            layers = (
                oci.build_layer(root, below, source.epoch, f"Debian {debian_files.SUITE}, pinned packages"),
                oci.build_layer(root, [PREFIX.lstrip("/")], source.epoch, f"pointsman {source.version}"),
            )
            image = oci.Image(architecture, source.epoch, build_labels(source), *start, layers)
            yield Built(image, components[architecture])


def build(into: Path, source: Source) -> dict[str, bytes]:
    """Write an archive per architecture for nodes, and one of all for registries; return the former."""
    every = oci.Layout("pointsman", source.version, source.epoch)
    entries, archives = [], {}
    name = f"pointsman-image-{source.version}"
    for built in build_images(source):
        layout = oci.Layout("pointsman", source.version, source.epoch)
        content = layout.to_archive(layout.add_image(built.image))
        archive = into / f"{name}-{built.image.architecture}.tar"
        archive.write_bytes(content)
        sbom.write_bill(source, archive, built.components)
        archives[built.image.architecture] = content
        entries.append(every.add_image(built.image))
    index = every.add_index(entries, build_labels(source))
    (into / f"{name}.tar").write_bytes(every.to_archive(index))
    (into / f"{name}.digest").write_text(f"{index['digest']}\n")
    return archives


def main() -> int:
    if detect_architecture() not in MACHINES:
        print(f"make image: build on one of {', '.join(MACHINES)}", file=sys.stderr)
        return 1
    trial.require_root("make image")
    with staging("pointsman-image-*") as directory:
        for architecture, content in build(directory, read_source()).items():
            if architecture == detect_architecture():
                trial.try_image(content)
            else:
                trial.try_foreign_image(content, MACHINES[architecture])
    return 0


if __name__ == "__main__":
    sys.exit(main())
