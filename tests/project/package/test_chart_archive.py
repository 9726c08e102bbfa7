"""The chart as users get it: helm installs from the archive, and pulls it from a registry that serves the OCI layout."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.release import chart, oci
from scripts.release.source import Source
from tests.project.deploy.rendering import POD_NETWORK, helm, needs_helm

from pointsman import __version__

pytestmark = needs_helm
SOURCE = Source(__version__, "0123abc", 1_700_000_000)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry that holds what the layout holds; blobs and manifests are found by digest, the chart by its tag."""
    layout, digest = chart.build_layout(SOURCE, chart.build_chart(SOURCE))
    with tarfile.open(fileobj=BytesIO(layout)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    held = {f"sha256:{name.rpartition('/')[2]}": content for name, content in files.items() if "/" in name}
    held[__version__] = held[digest]

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = held.get(self.path.rpartition("/")[2])
            self.send_response(200 if content is not None or self.path == "/v2/" else 404)
            if content is not None:
                self.send_header("Docker-Content-Digest", oci.compute_digest(content))
                manifest = "/manifests/" in self.path
                self.send_header("Content-Type", oci.MANIFEST if manifest else "application/octet-stream")
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if content is not None and self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_helm_installs_from_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "pointsman-chart.tgz"
    archive.write_bytes(chart.build_chart(SOURCE))
    assert archive.read_bytes() == chart.build_chart(SOURCE)
    done = helm("template", "pointsman", str(archive), "--set", f"config.clusterCIDR={POD_NETWORK}")
    assert done.returncode == 0, done.stderr
    assert f"pointsman:{__version__}" in done.stdout


def test_helm_pulls_it_from_a_registry(registry: str, tmp_path: Path) -> None:
    place = f"oci://{registry}/pointsman"
    done = helm("pull", place, "--version", __version__, "--plain-http", "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tgz")
    assert archive.read_bytes() == chart.build_chart(SOURCE)


def test_the_configuration_of_the_artefact_is_the_charts_own() -> None:
    layout, digest = chart.build_layout(SOURCE, b"chart")
    with tarfile.open(fileobj=BytesIO(layout)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    manifest = json.loads(files["blobs/" + digest.replace(":", "/")])
    config = json.loads(files["blobs/" + manifest["config"]["digest"].replace(":", "/")])
    assert config == yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
