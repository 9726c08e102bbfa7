"""kube-proxy's rule about kernels in nftables mode, and the way around it; what is no fault of the kernel."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from pointsman.backends.nftables.fields import find_traits
from pointsman.backends.nftables.preflight import (
    SKIP_VERSION_CHECK,
    find_version_problems,
    lacks_hash,
    preflight,
)
from pointsman.errors import KernelError
from pointsman.kernel.netlink import Message
from pointsman.kernel.nfnl import Fault
from pointsman.model.addresses import Family


@pytest.mark.parametrize("release", ["5.12.19", "4.18.0-553.el8", "3.10.0"])
def test_kernels_before_5_13_are_refused_unless_the_check_is_skipped(release: str) -> None:
    (problem,) = find_version_problems(release, {})
    assert release in problem
    assert "5.13" in problem
    assert SKIP_VERSION_CHECK in problem
    assert find_version_problems(release, {SKIP_VERSION_CHECK: ""})
    assert find_version_problems(release, {SKIP_VERSION_CHECK: "1"}) == []


@pytest.mark.parametrize("release", ["5.13.0", "5.14.0-427.el9", "6.1.0", "unheard of"])
def test_later_kernels_and_those_without_a_number_are_tried(release: str) -> None:
    assert find_version_problems(release, {}) == []


class Refusing:
    """A socket to a kernel that refuses, from one transaction on."""

    def __init__(self, code: int, accepts: int = 0) -> None:
        self._code, self._accepts = code, accepts
        self.closed = False

    def check(self, _messages: Sequence[Message]) -> list[Fault]:
        self._accepts -= 1
        return [Fault(0, self._code)] if self._accepts < 0 else []

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("accepts", [0, 1, 5])
def test_a_momentary_lack_is_raised_and_nothing_is_called_missing(accepts: int) -> None:
    socket = Refusing(errno.ENOMEM, accepts)
    with pytest.raises(KernelError, match="Cannot allocate memory") as caught:
        preflight(Family.IPV4, lambda: socket)
    assert caught.value.is_temporary
    assert socket.closed
    with pytest.raises(KernelError, match="Cannot allocate memory"):
        lacks_hash(Refusing(errno.ENOMEM), find_traits(Family.IPV4))


@pytest.mark.parametrize("family", list(Family))
def test_hashes_are_missing_only_where_the_kernel_refuses_them(family: Family) -> None:
    assert lacks_hash(Refusing(errno.ENOENT), find_traits(family))
    assert not lacks_hash(Refusing(errno.ENOENT, accepts=1), find_traits(family))


def test_without_a_descriptor_nothing_is_called_missing() -> None:
    def no_socket() -> Refusing:
        raise KernelError("open netlink socket", errno.EMFILE)

    with pytest.raises(KernelError, match="open netlink socket"):
        preflight(Family.IPV4, no_socket)


def test_what_the_kernel_really_refuses_is_missing() -> None:
    assert "nftables is not usable" in preflight(Family.IPV4, lambda: Refusing(errno.EOPNOTSUPP))[-1]
    assert len(preflight(Family.IPV4, lambda: Refusing(errno.ENOENT, accepts=1))) >= 10
