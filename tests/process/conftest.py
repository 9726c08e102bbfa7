"""Fixtures of the process tests: a node, and a process on it that is ended whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.api_thread import ApiThread
from tests.harness.node import LabNode, NodeProcess


@pytest.fixture
def node() -> Iterator[LabNode]:
    made = LabNode()
    yield made
    made.close()


@pytest.fixture
def process(node: LabNode, tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(node, tmp_path)
    made.configure()
    yield made
    made.stop()
    assert not made.find_slow_callbacks()


@pytest.fixture
def api(node: LabNode, tmp_path: Path) -> Iterator[ApiThread]:
    with ApiThread(node, tmp_path) as made:
        yield made
