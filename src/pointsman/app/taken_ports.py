"""Ports that somebody else holds: said once, and if it is another proxy, in one sentence for all of them.

The usual cause is kube-proxy, still running where this proxy was started. It is recognised by what it answers at the metrics
port: a pod cannot see the processes of others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from pointsman.config.mode_table import MODES
from pointsman.kernel.sysctl import Degraded
from pointsman.node.degraded import PORTS, DegradedChecks
from pointsman.serve.listeners import BindFailed, parse_bind_address

_ANSWER_SECONDS = 2.0
_LARGEST_ANSWER = 4096
_ON_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  where a wildcard can be reached


class TakenPorts:
    """What keeps the servers of a proxy from listening."""

    def __init__(self, degraded: DegradedChecks, on_freed: Callable[[], None]) -> None:
        """`on_freed` is called when the last of them could be had after all: who held them may have left rules."""
        self._degraded = degraded
        self._on_freed = on_freed
        self._failures: dict[str, BindFailed] = {}

    async def failed(self, server: str, failure: BindFailed, metrics_address: str) -> None:
        """A server cannot listen; `metrics_address` is where another proxy would answer, empty when we do."""
        self._failures[server] = failure
        mode = await proxy_mode_at(metrics_address) if metrics_address else ""
        if mode:
            held = " and ".join(one.address for one in self._failures.values())
            sentence = (
                f"a proxy in {mode} mode already serves this node and holds {held}: run one proxy per node, "
                "and keep kube-proxy off this one (docs/install.md)"
            )
            self._degraded.report(PORTS, [Degraded("another proxy", sentence)])
        else:
            failures = self._failures.items()
            self._degraded.report(PORTS, [Degraded(name, str(one)) for name, one in failures])

    def settled(self, server: str, listens: bool) -> None:
        """It listens after all, or need not any more; about the others their own next attempt will tell."""
        self._failures.pop(server, None)
        if not self._failures:
            self._degraded.report(PORTS, ())
            if listens:
                self._on_freed()


async def proxy_mode_at(address: str) -> str:
    """The mode of the proxy whose metrics port this is; empty when none answers there."""
    host, port = parse_bind_address(address)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(_ON_LOOPBACK.get(host, host), port)
            try:
                writer.write(b"GET /proxyMode HTTP/1.0\r\nHost: localhost\r\n\r\n")
                answer = await _all_of(reader)
            finally:
                writer.close()
        body = answer.decode("ascii", "replace").partition("\r\n\r\n")[2].strip()
        return body if body in MODES else ""
    return ""


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    """Up to the end of the connection, however many pieces the answer comes in; no more than we have use for."""
    try:
        return await reader.readexactly(_LARGEST_ANSWER)
    except asyncio.IncompleteReadError as ended:
        return ended.partial
