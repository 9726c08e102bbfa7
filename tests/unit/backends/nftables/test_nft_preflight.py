"""kube-proxy's rule about kernels in nftables mode and the way around it, and what is asked of a kernel later."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from pointsman.backends.nftables.family_traits import traits_of
from pointsman.backends.nftables.preflight import SKIP_VERSION_CHECK, lacks_hash, version_problems
from pointsman.errors import KernelError
from pointsman.kernel.netlink import Message
from pointsman.kernel.nfnl import Fault
from pointsman.model.addresses import Family


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


class Kernel:
    """Refuses what it is asked about, for one reason."""

    def __init__(self, *codes: int) -> None:
        self._codes = codes

    def check(self, messages: Sequence[Message]) -> list[Fault]:
        assert messages
        return [Fault(0, code) for code in self._codes]


@pytest.mark.parametrize("family", list(Family))
def test_hashes_are_missing_only_where_the_kernel_refuses_them(family: Family) -> None:
    assert lacks_hash(Kernel(errno.ENOENT), traits_of(family))
    assert not lacks_hash(Kernel(), traits_of(family))


def test_a_lack_of_memory_says_nothing_about_hashes() -> None:
    with pytest.raises(KernelError, match="Cannot allocate memory"):
        lacks_hash(Kernel(errno.ENOMEM), traits_of(Family.IPV4))
