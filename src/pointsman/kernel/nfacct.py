"""Named packet counters of the kernel (nfacct), which iptables rules can count into.

Created and read over nfnetlink; the `nfacct` program is not needed. Counters belong to the network namespace and
outlive their users.
"""

from __future__ import annotations

import errno
import struct

import msgspec

from pointsman.errors import KernelError
from pointsman.kernel.attributes import attributes, text
from pointsman.kernel.netlink import (
    NETLINK_NETFILTER,
    NLM_F_CREATE,
    NLM_F_EXCL,
    Message,
    NetlinkSocket,
    kernel_error,
)

_SUBSYSTEM_ACCT = 7 << 8
_NEW = _SUBSYSTEM_ACCT | 0
_GET = _SUBSYSTEM_ACCT | 1
_DELETE = _SUBSYSTEM_ACCT | 3
_NFNL_HEADER = bytes(4)
_ATTR_NAME = 1
_ATTR_PACKETS = 2
_ATTR_BYTES = 3
_NEEDS = "CONFIG_NETFILTER_NETLINK_ACCT and CONFIG_NETFILTER_XT_MATCH_NFACCT"


class Count(msgspec.Struct, frozen=True, gc=False):
    """What a counter has seen."""

    packets: int
    octets: int


def ensure(name: str) -> None:
    """Create the counter unless it exists; raises NotSupported where the kernel has no nfacct."""
    payload = _NFNL_HEADER + text(_ATTR_NAME, name)
    with NetlinkSocket(NETLINK_NETFILTER) as socket:
        reply = socket.request((Message(_NEW, NLM_F_CREATE | NLM_F_EXCL, payload),))[0]
    if reply.errno in (0, errno.EEXIST, errno.EBUSY):
        return
    code = errno.EOPNOTSUPP if reply.errno == errno.EINVAL else reply.errno
    raise kernel_error(code, f"create packet counter {name}", reply.text, needs=_NEEDS)


def read(name: str) -> Count | None:
    """The counter's values, or None when there is no such counter."""
    payload = _NFNL_HEADER + text(_ATTR_NAME, name)
    with NetlinkSocket(NETLINK_NETFILTER) as socket:
        reply = socket.request((Message(_GET, 0, payload),))[0]
    if reply.errno == errno.ENOENT:
        return None
    if reply.errno:
        raise kernel_error(reply.errno, f"read packet counter {name}", reply.text, needs=_NEEDS)
    for answer in reply.answers:
        found = attributes(answer.payload, len(_NFNL_HEADER))
        if _ATTR_PACKETS in found:
            return Count(_u64(found[_ATTR_PACKETS]), _u64(found[_ATTR_BYTES]))
    raise KernelError(f"the kernel's answer about packet counter {name} holds no values")


def exists(name: str) -> bool:
    """Whether there is such a counter; False also where the kernel has no nfacct."""
    try:
        return read(name) is not None
    except KernelError:
        return False


def delete(name: str) -> bool:
    """Remove the counter; False when it does not exist or a rule still uses it."""
    payload = _NFNL_HEADER + text(_ATTR_NAME, name)
    with NetlinkSocket(NETLINK_NETFILTER) as socket:
        reply = socket.request((Message(_DELETE, 0, payload),))[0]
    return reply.errno == 0


def _u64(data: bytes) -> int:
    return int(struct.unpack(">Q", data)[0])
