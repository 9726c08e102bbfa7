"""Many clients of ours in one process, each as a node would run it: ApiSource over a ApiClient of its own, no kernel.

Lines on standard input steer it: `go` starts all clients, `report` prints what they have seen so far as one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from bench.apiserver import TOKEN

from pointsman.kube.access import Access
from pointsman.kube.client import ApiClient
from pointsman.kube.client_metrics import RequestListener
from pointsman.model.objects import EndpointSlice, Upsert
from pointsman.source.api import ApiSource


class Requests(RequestListener):
    """Times of answers and of failed requests."""

    def __init__(self) -> None:
        self.answers: list[float] = []
        self.failures: list[float] = []

    def on_response(self, method: str, status: int | None) -> None:
        del method
        (self.answers if status is not None and status < 400 else self.failures).append(time.monotonic())


class Client:
    """One node's worth of questions."""

    def __init__(self, url: str) -> None:
        self.requests = Requests()
        access = Access(url, "bench", insecure_skip_tls_verify=url.startswith("https"), token=TOKEN)
        self._client = ApiClient(access, listener=self.requests)
        self._source = ApiSource(self._client, node_name="n1")
        self.slices = 0

    async def run(self) -> None:
        async for event in self._source.events():
            self.slices += isinstance(event, Upsert) and isinstance(event.object, EndpointSlice)

    def report(self) -> dict[str, Any]:
        statuses = self._source.statuses.values()
        return {
            "synced": all(status.synced for status in statuses),
            "connected": all(status.connected or status.absent for status in statuses),
            "lists": sum(status.lists for status in statuses),
            "slices": self.slices,
            "answers": self.requests.answers,
            "failures": self.requests.failures,
        }


async def work(clients: list[Client]) -> None:
    loop = asyncio.get_running_loop()
    running: list[asyncio.Task[None]] = []
    print("ready", flush=True)
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if line == "go":
            running = [asyncio.create_task(client.run()) for client in clients]
        else:
            print(json.dumps([client.report() for client in clients]), flush=True)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--clients", type=int, required=True)
    options = parser.parse_args()
    clients = [Client(options.server) for _ in range(options.clients)]
    asyncio.run(work(clients))


if __name__ == "__main__":
    main()
