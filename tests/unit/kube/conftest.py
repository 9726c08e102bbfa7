"""What the tests of the API client share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.fake.certificates import make_certificates, server_tls


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pki")
    make_certificates(directory)
    return directory


@pytest.fixture(params=["http1", "http2"])
def protocol(request: pytest.FixtureRequest, pki: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs twice: with fake API servers that speak HTTP/1.1 without TLS, and HTTP/2."""
    if request.param == "http2":
        monkeypatch.setattr(FakeApiServer, "http2_by_default", server_tls(pki))
    return str(request.param)
