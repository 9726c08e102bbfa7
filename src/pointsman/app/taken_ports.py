"""Ports that cannot be opened, as a condition.

The usual cause is kube-proxy, still running where this proxy was started. It is recognised by its answer at the metrics port:
a pod cannot see the processes of other pods.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from pointsman.conditions import Blocks, Condition
from pointsman.config.mode_table import MODES
from pointsman.serve.listeners import BindFailed, parse_bind_address

_ANSWER_TIMEOUT_SECONDS = 2.0
_ON_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  where a wildcard can be reached


class TakenPorts:
    """The ports of this proxy's servers that are in use by another process."""

    def __init__(self, on_freed: Callable[[], None]) -> None:
        """`on_freed` is called when the last of them could be opened later: the other process may have left rules."""
        self._on_freed = on_freed
        self._failures: dict[str, BindFailed] = {}
        self._other_mode = ""
        """The mode of the proxy that holds the ports, where it is one."""

    async def on_bind_failed(self, server: str, failure: BindFailed, metrics_address: str) -> None:
        """Note that a server cannot listen; another proxy would answer at `metrics_address`, empty when we listen there."""
        self._failures[server] = failure
        self._other_mode = await find_proxy_mode(metrics_address) if metrics_address else ""

    def on_bound(self, server: str, listens: bool) -> None:
        """Note that a server listens now, or is no longer configured."""
        self._failures.pop(server, None)
        if not self._failures and listens:
            self._on_freed()

    def conditions(self) -> Iterator[Condition]:
        if not self._failures:
            yield Condition.true("Listening", Blocks.READINESS)
        elif self._other_mode:
            addresses = " and ".join(failure.address for failure in self._failures.values())
            yield Condition.false(
                "Listening",
                "OtherProxyRunning",
                f"another proxy in {self._other_mode} mode serves this node and holds {addresses}",
                "run one proxy per node, and keep kube-proxy off this one (docs/install.md)",
                blocks=Blocks.READINESS,
            )
        else:
            failures = "; ".join(f"{server}: {failure}" for server, failure in self._failures.items())
            yield Condition.false("Listening", "BindFailed", failures, blocks=Blocks.READINESS)


async def find_proxy_mode(address: str) -> str:
    """Return the mode of the proxy whose metrics port this is; empty when none answers there."""
    host, port = parse_bind_address(address)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(_ON_LOOPBACK.get(host, host), port)
            try:
                writer.write(b"GET /proxyMode HTTP/1.0\r\nHost: localhost\r\n\r\n")
                answer = await reader.read()
            finally:
                writer.close()
        body = answer.decode("ascii", "replace").partition("\r\n\r\n")[2].strip()
        return body if body in MODES else ""
    return ""
