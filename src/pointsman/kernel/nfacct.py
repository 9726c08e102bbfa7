"""Named packet counters of the kernel (nfacct), which iptables rules can count into.

Created and read over nfnetlink; the `nfacct` program is not needed. Counters belong to the network namespace and
outlive their users.
"""

from __future__ import annotations

import errno

from pointsman.errors import KernelError
from pointsman.kernel.attributes import pack_text, parse_attributes, parse_number
from pointsman.kernel.netlink import (
    NETLINK_NETFILTER,
    NLM_F_CREATE,
    NLM_F_EXCL,
    Message,
    NetlinkSocket,
    Reply,
    build_kernel_error,
)

_SUBSYSTEM_ACCT = 7 << 8
_NEW = _SUBSYSTEM_ACCT | 0
_GET = _SUBSYSTEM_ACCT | 1
_DELETE = _SUBSYSTEM_ACCT | 3
_NFNL_HEADER = bytes(4)
_ATTR_NAME = 1
_ATTR_PACKETS = 2
_NEEDS = "CONFIG_NETFILTER_NETLINK_ACCT and CONFIG_NETFILTER_XT_MATCH_NFACCT"


def ensure(name: str) -> None:
    """Create the counter unless it exists; raises NotSupported where the kernel has no nfacct."""
    reply = _request(_NEW, name, NLM_F_CREATE | NLM_F_EXCL)
    if reply.errno in (0, errno.EEXIST, errno.EBUSY):
        return
    code = errno.EOPNOTSUPP if reply.errno == errno.EINVAL else reply.errno
    raise build_kernel_error(code, f"create packet counter {name}", reply.text, needs=_NEEDS)


def read_packets(name: str) -> int | None:
    """Return how many packets were counted; None when there is no such counter."""
    reply = _request(_GET, name)
    if reply.errno == errno.ENOENT:
        return None
    if reply.errno:
        raise build_kernel_error(reply.errno, f"read packet counter {name}", reply.text, needs=_NEEDS)
    for answer in reply.answers:
        found = parse_attributes(answer.payload, len(_NFNL_HEADER))
        if _ATTR_PACKETS in found:
            return parse_number(found[_ATTR_PACKETS])
    raise KernelError(f"the kernel's answer about packet counter {name} holds no values")


def has_counter(name: str) -> bool:
    """Return whether there is such a counter; False also where the kernel has no nfacct."""
    try:
        return read_packets(name) is not None
    except KernelError:
        return False


def delete(name: str) -> bool:
    """Remove the counter; False when it does not exist or a rule still uses it."""
    return _request(_DELETE, name).ok


def _request(kind: int, name: str, flags: int = 0) -> Reply:
    with NetlinkSocket(NETLINK_NETFILTER) as socket:
        return socket.request((Message(kind, flags, _NFNL_HEADER + pack_text(_ATTR_NAME, name)),))[0]
