"""A server that does not answer: said soon, once, with the address and what to do."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.fake.apiserver import FakeApiServer

from pointsman.errors import KubeError
from pointsman.kube.access import Access
from pointsman.kube.reachability import Reachability
from pointsman.kube.transport import Transport

PATH = "/api/v1/services"


async def test_silence_is_reported_before_the_attempt_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def accept_and_say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await ended.wait()
        writer.close()

    accepted, ended = asyncio.Event(), asyncio.Event()
    silent = await asyncio.start_server(accept_and_say_nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    access = Access(url, "test", advice="give another address")
    transport = Transport(access, environ={}, reachability=Reachability(access, patience=0.01))
    asking = asyncio.create_task(transport.request("GET", PATH))
    await asyncio.wait_for(accepted.wait(), 60)
    while not transport.trouble:  # noqa: ASYNC110  nothing announces it but a log line
        await asyncio.sleep(0.01)
    assert not asking.done()
    assert transport.trouble.startswith(f"the API server cannot be reached at {url}: no answer for")
    assert transport.trouble.endswith("; give another address")
    ended.set()
    with pytest.raises(KubeError):
        await asking
    said = [record for record in caplog.records if "cannot be reached" in record.getMessage()]
    assert len(said) == 1
    await transport.close()
    silent.close()


async def test_an_answer_ends_the_trouble_and_an_address_that_worked_is_not_doubted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    server = FakeApiServer()
    await server.start()
    transport = Transport(Access(server.url, "test", advice="give another address"), environ={}, burst=100)
    await server.stop()
    for _ in range(2):
        with pytest.raises(KubeError):
            await transport.request("GET", PATH)
    assert "give another address" in transport.trouble
    await server.start()
    server.fail_next(403)
    with pytest.raises(KubeError, match="403"):
        await transport.request("GET", PATH)
    assert transport.trouble == "", "a refusal is an answer"
    await server.stop()
    with pytest.raises(KubeError):
        await transport.request("GET", PATH)
    assert "Connection refused" in transport.trouble
    assert "give another address" not in transport.trouble
    await transport.close()
    assert sum("cannot be reached" in record.getMessage() for record in caplog.records) == 2
    assert sum("can be reached" in record.getMessage() for record in caplog.records) == 1
