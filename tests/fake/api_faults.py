"""How the fake API server fails on demand, and for which requests."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import NoReturn

from tests.fake.apistore import status_object


@dataclass(frozen=True)
class SeenRequest:
    """What a client asked."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("true", "1")


@dataclass
class Fault:
    """Answers a matching request with an error instead."""

    status: int
    path: str = ""
    times: int = 1
    retry_after: int | None = None
    body: bytes | None = None
    watch: bool | None = None
    """Only watches, only other requests, or both."""
    raw: bytes | None = None
    """The whole answer as it goes over the wire, headers included; the connection is closed after it."""
    hold: bool = False
    """Keep the connection open after the raw answer, and send nothing more."""

    def hits(self, seen: SeenRequest) -> bool:
        return self.path in seen.path and self.watch in (None, seen.is_watch)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    @property
    def content(self) -> bytes:
        if self.body is not None:
            return self.body
        return json.dumps(status_object(self.status, "injected fault")).encode()


class Faults:
    """Those still to come, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._waiting.append(fault)

    def clear(self) -> None:
        self._waiting.clear()

    def hitting(self, seen: SeenRequest) -> Fault | None:
        """The one that hits this request; it is gone when it has hit as often as it should."""
        fault = next((fault for fault in self._waiting if fault.hits(seen)), None)
        if fault is not None:
            fault.times -= 1
            if fault.times <= 0:
                self._waiting.remove(fault)
        return fault


async def send_raw_answer(transport: asyncio.Transport | None, answer: bytes, *, hold: bool) -> NoReturn:
    """Bypasses HTTP; ends by cancellation once the connection is closed."""
    if transport is not None:
        transport.write(answer)
        if not hold:
            transport.close()
    await asyncio.Event().wait()
    raise ConnectionResetError
