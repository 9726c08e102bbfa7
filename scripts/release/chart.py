"""The Helm chart: as the archive that `helm install` takes, and as an OCI layout that a registry takes."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import yaml
from scripts.release import oci
from scripts.release.source import ROOT, Source

CHART = ROOT / "deploy/helm/pointsman"
_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
"""Media types that Helm 3.8 and later expect."""


def build_chart(source: Source, directory: Path = CHART) -> bytes:
    """Return the chart; the same bytes whenever it is built, unlike `helm package`."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                name = f"{directory.name}/{path.relative_to(directory)}"
                oci.add_bytes(tar, name, path.read_bytes(), source.epoch)
    return gzip.compress(output.getvalue(), 9, mtime=0)


def build_layout(source: Source, chart: bytes) -> tuple[bytes, str]:
    """Return the archive for a registry, and the digest by which the chart is pulled from there."""
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    layout = oci.Layout("pointsman", source.version, source.epoch)
    config = layout.add(_CONFIG, oci.encode_json(metadata))
    annotations = {
        "org.opencontainers.image.title": metadata["name"],
        "org.opencontainers.image.version": metadata["version"],
        "org.opencontainers.image.revision": source.revision,
    }
    manifest = layout.add_manifest(config, [layout.add(_CONTENT, chart)], annotations)
    return layout.to_archive(manifest), manifest["digest"]
