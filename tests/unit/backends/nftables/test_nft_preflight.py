"""kube-proxy's rule about kernels in nftables mode, and the way around it."""

from __future__ import annotations

import pytest

from pointsman.backends.nftables.preflight import SKIP_VERSION_CHECK, version_problems


@pytest.mark.parametrize("release", ["5.12.19", "4.18.0-553.el8", "3.10.0"])
def test_kernels_before_5_13_are_refused_unless_the_check_is_skipped(release: str) -> None:
    (problem,) = version_problems(release, {})
    assert release in problem
    assert "5.13" in problem
    assert SKIP_VERSION_CHECK in problem
    assert version_problems(release, {SKIP_VERSION_CHECK: ""})
    assert version_problems(release, {SKIP_VERSION_CHECK: "1"}) == []


@pytest.mark.parametrize("release", ["5.13.0", "5.14.0-427.el9", "6.1.0", "unheard of"])
def test_later_kernels_and_those_without_a_number_are_tried(release: str) -> None:
    assert version_problems(release, {}) == []
