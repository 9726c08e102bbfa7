"""Objects reach an API server that is too busy at first."""

from __future__ import annotations

from collections.abc import Iterator

import aiohttp
import pytest
from aiohttp import web
from bench import apiserver


async def _send_to(statuses: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Send one object to a server that answers like this; return how many requests it took."""
    requests = 0

    async def answer(_request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        return web.Response(status=next(statuses))

    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(apiserver, "RETRY_SECONDS", 0.0)
    try:
        async with aiohttp.ClientSession() as http:
            await apiserver.send_object(http, "POST", f"http://127.0.0.1:{runner.addresses[0][1]}/", {})
    finally:
        await runner.cleanup()
    return requests


async def test_a_busy_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _send_to(iter((504, 429, 409)), monkeypatch) == 3, "409: the first attempt had succeeded"


@pytest.mark.parametrize("status", [400, 409])
async def test_a_refusal_ends_the_benchmark(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=f"HTTP {status}"):
        await _send_to(iter((status,)), monkeypatch)
