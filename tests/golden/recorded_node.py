"""A network namespace like the node on which the recordings were made (see data/README.md)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from pointsman.lab.netns import LabUnavailable, Namespace

_COMMANDS = (
    "link set lo up",
    "link add eth0 address 02:00:ac:1e:00:0a type veth peer name wire",
    "link set eth0 up",
    "link set wire up",
    "address add 172.30.0.10/24 dev eth0",
    "address add fd00:30::10/64 dev eth0 nodad",
    "route add default via 172.30.0.1",
    "route add default via fd00:30::1",
)


@contextlib.contextmanager
def recorded_node() -> Iterator[Namespace]:
    """The namespace, with the calling thread inside; skips the test where namespaces cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        namespace = Namespace()
    except LabUnavailable as error:
        pytest.skip(str(error))
    try:
        for command in _COMMANDS:
            namespace.run(["ip", *command.split()])
        namespace.write_sysctls({"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"})
        with namespace.entered():
            yield namespace
    finally:
        namespace.close()
