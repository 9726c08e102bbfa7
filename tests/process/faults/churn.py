"""A flood of EndpointSlice events, rendered once and sent as raw watch lines, as a large rollout would cause."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from operator import methodcaller

from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import web_slices

BATCH_SECONDS = 0.05


def slice_line(service: str, version: int, address: str, family: int = 4) -> bytes:
    item = web_slices(service, address, address)[0 if family == 4 else 1]
    item["metadata"]["resourceVersion"] = str(version)
    return json.dumps({"type": "MODIFIED", "object": item}, separators=(",", ":")).encode() + b"\n"


def flood(
    api: ApiThread, services: list[str], seconds: float, per_second: int, first_version: int
) -> Iterator[int]:
    """Send `per_second` changes for `seconds`; yields the number sent so far after every batch."""
    version, sent = first_version, 0
    rendered = [
        (name, [json.loads(slice_line(name, 0, f"172.30.1.{octet}")) for octet in range(1, 9)])
        for name in services
    ]
    templates = [
        [
            json.dumps(line).replace('"resourceVersion": "0"', '"resourceVersion": "%d"') + "\n"
            for line in lines
        ]
        for _, lines in rendered
    ]
    ends = time.monotonic() + seconds
    batch = max(1, int(per_second * BATCH_SECONDS))
    while time.monotonic() < ends:
        began = time.monotonic()
        lines = []
        for _ in range(batch):
            version += 1
            of_service = templates[version % len(templates)]
            lines.append(of_service[(version // len(templates)) % len(of_service)] % version)
        data = "".join(lines).encode()
        api.call(methodcaller("send_raw", "EndpointSlice", data))
        sent += batch
        yield sent
        time.sleep(max(0.0, BATCH_SECONDS - (time.monotonic() - began)))
