"""A network namespace of its own for a test, and an nftables backend in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kernel.nft_kernel import new_namespace

from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    space = new_namespace()
    with space.entered():
        yield space
    space.close()


@pytest.fixture
def backend(namespace: Namespace) -> Iterator[NftablesBackend]:
    made = NftablesBackend(Family.IPV4)
    yield made
    made.close()
