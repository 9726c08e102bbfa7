"""`make package`: wheel, sdist, Debian package, bill of materials and checksums, into dist/."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.release import deb, sbom, trial
from scripts.release.source import DIST, Source, source
from scripts.release.tree import build_wheel, complete, install_pinned, packages_directory


def build(into: Path, made_from: Source) -> None:
    build_wheel(into, made_from, ("sdist", "wheel"))
    (wheel,) = into.glob("*.whl")
    host = deb.this_host()
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        packages = packages_directory(tree, host.python)
        install_pinned(packages, host.python, wheel, made_from)
        complete(tree, host.python)
        components = sbom.python_components(packages)
        deb.furnish(tree, made_from)
        package = deb.pack(tree, made_from, host, into)
    bill = into / f"pointsman-{made_from.version}.cdx.json"
    bill.write_text(sbom.bill(made_from, package.name, components))


def write_checksums(directory: Path) -> None:
    """As `sha256sum --check` reads them."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name != "SHA256SUMS"
    ]
    (directory / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    if shutil.which("dpkg-deb") is None:
        print("make package: dpkg-deb is missing; build on Debian or Ubuntu", file=sys.stderr)
        return 1
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("pointsman[-_]*"):
        if "image" not in old.name:
            old.unlink()
    build(DIST, source())
    write_checksums(DIST)
    (package,) = DIST.glob("*.deb")
    trial.try_package(package)
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10}  dist/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
