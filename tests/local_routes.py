"""Waiting until the kernel can reach an address that was just added."""

from __future__ import annotations

import errno
import socket
import time

import pytest


def await_local_route(address: str) -> None:
    """The kernel installs the route of a new IPv6 address by a work queue, up to a second later on a busy machine.

    Until then a server can listen there and nobody can connect. To be called inside the namespace.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for _ in range(3000):
        with socket.socket(family) as sock:
            if sock.connect_ex((address, 9)) == errno.ECONNREFUSED:
                return
        time.sleep(0.01)
    pytest.fail(f"{address} is not reachable")
