"""Fixtures of the process tests: a node, and a process on it that is ended whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.api_thread import ApiThread
from tests.process.node_space import NodeProcess, NodeSpace


@pytest.fixture
def node() -> Iterator[NodeSpace]:
    made = NodeSpace()
    yield made
    made.close()


@pytest.fixture
def process(node: NodeSpace, tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(node, tmp_path)
    made.configure()
    yield made
    made.stop()


@pytest.fixture
def api(node: NodeSpace, tmp_path: Path) -> Iterator[ApiThread]:
    with ApiThread(node, tmp_path) as made:
        yield made
