"""`make package`: wheel, sdist, Debian packages and chart, each with a bill of materials, into dist/; tries the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.release import chart, deb, sbom, trial
from scripts.release.source import Source, read_source, staging
from scripts.release.tree import MACHINES, PYTHONS, build_tree, build_wheel, find_packages


def detect_architecture() -> str:
    command = ("dpkg", "--print-architecture")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build(into: Path, source: Source) -> None:
    wheel = build_wheel(into, source, ("sdist", "wheel"))
    pinned = sbom.list_pinned_components()
    for path in tuple(into.iterdir()):
        sbom.write_bill(source, path, pinned, inside=False)
    for architecture in MACHINES:
        with tempfile.TemporaryDirectory() as directory:
            tree = Path(directory) / "tree"
            build_tree(tree, architecture, PYTHONS, "/usr/bin/python3", wheel, source)
            components = sbom.list_python_components(find_packages(tree))
            deb.add_system_files(tree, source)
            sbom.write_bill(source, deb.pack(tree, source, architecture, into), components)
    name = f"pointsman-chart-{source.version}"
    archive = into / f"{name}.tgz"
    archive.write_bytes(chart.build_chart(source))
    sbom.write_bill(source, archive, ())
    layout, digest = chart.build_layout(source, archive.read_bytes())
    (into / f"{name}.oci.tar").write_bytes(layout)
    (into / f"{name}.digest").write_text(f"{digest}\n")


def main() -> int:
    if shutil.which("dpkg-deb") is None:
        print("make package: dpkg-deb is missing; build on Debian or Ubuntu", file=sys.stderr)
        return 1
    trial.require_root("make package")
    source = read_source()
    with staging("pointsman[-_][0-9]*", "pointsman-chart-*") as directory:
        build(directory, source)
        (package,) = directory.glob(f"*_{detect_architecture()}.deb")
        trial.try_package(package)
    return 0


if __name__ == "__main__":
    sys.exit(main())
