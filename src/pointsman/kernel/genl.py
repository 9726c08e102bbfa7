"""Generic netlink: families have names, and the kernel says at run time which number each one got."""

from __future__ import annotations

import errno
import struct
import sys

from pointsman.errors import NotSupported
from pointsman.kernel import attributes as nla
from pointsman.kernel import netlink
from pointsman.kernel.netlink import Message, NetlinkSocket

GENL_ID_CTRL = 0x10
CTRL_CMD_GETFAMILY = 3
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 1, 2

_HEADER = struct.Struct("=BBH")
HEADER_LENGTH = _HEADER.size


def header(command: int, version: int = 1) -> bytes:
    """What stands before the attributes of every generic netlink message."""
    return _HEADER.pack(command, version, 0)


def resolve(sock: NetlinkSocket, family: str, *, needs: str) -> int:
    """The message type of a family; asking also makes the kernel load its module where it can."""
    payload = header(CTRL_CMD_GETFAMILY) + nla.text(CTRL_ATTR_FAMILY_NAME, family)
    reply = sock.request((Message(GENL_ID_CTRL, 0, payload),))[0]
    if reply.errno == errno.ENOENT:
        raise NotSupported(f"the kernel has no {family} family; it needs {needs}", reply.errno)
    if reply.errno:
        raise netlink.kernel_error(reply.errno, f"look up {family}", reply.text, needs=needs)
    for answer in reply.answers:
        number = nla.attributes(answer.payload, HEADER_LENGTH).get(CTRL_ATTR_FAMILY_ID)
        if number is not None:
            return int.from_bytes(number, sys.byteorder)
    raise NotSupported(f"the kernel did not say which number its {family} family has; it needs {needs}")
