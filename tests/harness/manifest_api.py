"""Serves a manifest file as an API server would, following its changes: how kube-proxy takes part in the lab.

python tests/harness/manifest_api.py PORT FILE
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fake.apiserver import FakeApiServer
from tests.fake.apistore import key_of

_POLL_SECONDS = 0.02


async def serve(port: int, file: Path) -> None:
    server = FakeApiServer(port=port, watch_list=False)
    known: dict[tuple[str, str], Any] = {}
    last: tuple[int, int, int] | None = None
    async with server:
        while True:
            version = _version(file)
            if version != last:
                last = version
                content = await asyncio.to_thread(file.read_bytes)
                known = _follow(server, known, json.loads(content)["items"])
            await asyncio.sleep(_POLL_SECONDS)


def _version(file: Path) -> tuple[int, int, int] | None:
    """A value that changes with the content, without reading a large file this often."""
    if not file.exists():
        return None
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _follow(
    server: FakeApiServer, known: dict[tuple[str, str], Any], items: list[Any]
) -> dict[tuple[str, str], Any]:
    """Bring the server to `items`, in their order."""
    wanted = {(item["kind"], key_of(item)): item for item in items}
    for kind, key in known.keys() - wanted.keys():
        server.delete(kind, key)
    for name, item in wanted.items():
        fresh = json.loads(json.dumps(item))
        fresh["metadata"].setdefault("uid", "-".join(name))
        if name not in known:
            server.add(fresh)
        elif known[name] != item:
            server.update(fresh)
    return wanted


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
