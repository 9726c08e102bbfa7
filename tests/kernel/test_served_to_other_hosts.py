"""What the served ports tell, and to whom: clients at other addresses than loopback, with real connections."""

from __future__ import annotations

from collections.abc import Iterator

import aiohttp
import pytest
from tests.harness import lab as harness

from pointsman.config.gates import FeatureGates
from pointsman.lab.netns import Namespace
from pointsman.obs.registry import Metrics
from pointsman.serve.listeners import Listener
from pointsman.serve.messages import route
from pointsman.serve.routes import Pages, build_metrics_routes

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]

NODE = "198.51.100.1"


@pytest.fixture(autouse=True)
def _node() -> Iterator[None]:
    """A namespace with an address besides loopback; a client of that address comes from it."""
    space = Namespace()
    space.run(["ip", "link", "set", "lo", "up"])
    space.run(["ip", "address", "add", f"{NODE}/32", "dev", "lo"])
    with space.entered():
        yield
    space.close()


@pytest.mark.parametrize(("address", "status"), [("127.0.0.1", 200), (NODE, 403)])
async def test_profiles_are_for_clients_on_loopback(address: str, status: int) -> None:
    pages = Pages(
        configuration=lambda: b"{}",
        flags=dict,
        version="v1",
        gates=FeatureGates({}),
        profiling=True,
    )
    listener = Listener("metrics server", route(build_metrics_routes(Metrics("nftables"), pages)))
    await listener.start("0.0.0.0:0")
    url = f"http://{address}:{listener.addresses[0][1]}/debug/pprof/goroutine"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == status
    await listener.stop()
