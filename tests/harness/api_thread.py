"""The fake API server inside a node's namespace, driven from the test's thread."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.fake.apiserver import FakeApiServer
from tests.harness.node import LabNode

T = TypeVar("T")


class ApiThread:
    """Runs a FakeApiServer on a thread of its own; every call is carried over to its event loop."""

    def __init__(self, node: LabNode, directory: Path, http2: ssl.SSLContext | None = None) -> None:
        self._node = node
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="fake-api")
        self._started = threading.Event()
        self.server = FakeApiServer(http2=http2)
        self.kubeconfig = directory / "kubeconfig"

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(10)
        user = {"name": "u", "user": {}}
        cluster = {"name": "c", "cluster": {"server": self.server.url, "insecure-skip-tls-verify": True}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "clusters": [cluster],
            "users": [user],
            "contexts": [context],
        }
        self.kubeconfig.write_text(json.dumps(document))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Callable[[FakeApiServer], T]) -> T:
        """Run on the server's loop; the result."""

        async def work_there() -> T:
            return work(self.server)

        return asyncio.run_coroutine_threadsafe(work_there(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(10)

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(10)

    def load(self, *items: dict[str, Any]) -> None:
        self.call(lambda server: [server.add(item) for item in items])

    def events(self) -> list[dict[str, Any]]:
        return self.call(lambda server: list(server.store.objects["Event"].values()))

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        with self._node.namespace.entered():
            self._loop.run_until_complete(self.server.start())
            self._started.set()
            self._loop.run_forever()
