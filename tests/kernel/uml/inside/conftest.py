"""What the tests inside User-mode Linux share: a node like the recorded one, backends, and the variant of iptables that the kernel has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from tests.kernel.uml.inside.tools import VARIANT, Dump, MakeBackend

from pointsman.backends.ipvs.apply import IpvsBackend, IpvsSettings
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.iptables import Iptables
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family

NODE_COMMANDS = """
link set lo up
link add eth0 address 02:00:ac:1e:00:0a type veth peer name wire
link set eth0 up
link set wire up
address add 172.30.0.10/24 dev eth0
address add fd00:30::10/64 dev eth0 nodad
route add default via 172.30.0.1
route add default via fd00:30::1
"""


@pytest.fixture(scope="session")
def iptables() -> dict[Family, Iptables]:
    """One per family for all tests: starting programs is slow here, and each asks for its version once."""
    return {family: Iptables(family, SystemCommands(), variant=VARIANT) for family in Family}


@pytest.fixture
def node() -> Iterator[Namespace]:
    """A fresh namespace like the node of the recordings, with the test inside."""
    namespace = Namespace()
    try:
        namespace.run(("ip", "-batch", "-"), NODE_COMMANDS)
        namespace.write_sysctls({"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"})
        with namespace.entered():
            yield namespace
    finally:
        namespace.close()


@pytest.fixture
def make_backend(iptables: dict[Family, Iptables]) -> Iterator[MakeBackend]:
    """Backends of the namespace the test is in, closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(
            family: Family = Family.IPV4, settings: IpvsSettings | None = None, **more: object
        ) -> IpvsBackend:
            backend = IpvsBackend(family, iptables[family], settings or IpvsSettings(), **more)  # type: ignore[arg-type]
            stack.callback(backend.close)
            return backend

        yield make


@pytest.fixture(scope="session")
def dump() -> Dump:
    return Dump()
