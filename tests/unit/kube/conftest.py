"""What the tests of the API client share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.kube.certificates import make_certificates


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pki")
    make_certificates(directory)
    return directory
