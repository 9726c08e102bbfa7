"""Groups of all endpoints are made again at bounded cost while endpoints change."""

from __future__ import annotations

import pytest
from tests import factory

from pointsman.model.tracker import PortState
from pointsman.node import host_checks
from pointsman.node.host_checks import CheckInput, EndpointGrouper


def build_input(version: int, *addresses: str) -> CheckInput:
    port = factory.service_port()
    state = PortState(port, tuple(factory.endpoint(address) for address in addresses))
    return CheckInput(factory.context(), (), (), (version,), {port.name: state})


@pytest.mark.parametrize(
    ("factor", "low"),
    [(0.0, "10.244.1.2"), (1e9, "10.244.1.1")],
    ids=["after the pause", "within the pause"],
)
def test_a_new_version_counts_after_the_pause(
    factor: float, low: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_checks, "OVERVIEW_PAUSE_FACTOR", factor)
    grouper = EndpointGrouper()
    assert grouper.group(build_input(1, "10.244.1.1")).remote.low == factory.packed("10.244.1.1")
    assert grouper.group(build_input(2, "10.244.1.2")).remote.low == factory.packed(low)
