"""The fake API server alone: `python -m tests.fake.serve_api --objects objects.json --port 8080`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path

from tests.fake.apiserver import FakeApiServer
from tests.fake.apistore import key_of, objects_in


async def _serve(server: FakeApiServer, *, read_objects: bool) -> None:
    async with server:
        print(server.url, flush=True)
        while read_objects and (line := await asyncio.to_thread(sys.stdin.readline)):
            _put(server, Path(line.strip()))
        await asyncio.Event().wait()


def _put(server: FakeApiServer, path: Path) -> None:
    for item in objects_in(json.loads(path.read_bytes())):
        if key_of(item) in server.store.objects[item["kind"]]:
            server.update(item)
        else:
            server.add(item)


def main() -> None:
    """Serves until interrupted; the first line printed is the address."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fake.serve_api", description="A fake Kubernetes API server on loopback."
    )
    parser.add_argument("--objects", type=Path, help="JSON file with a List or one object")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (any free one)")
    parser.add_argument("--token", default="", help="bearer token to demand")
    parser.add_argument("--no-watch-list", action="store_true", help="refuse sendInitialEvents")
    parser.add_argument("--no-protobuf", action="store_true", help="answer in JSON only")
    parser.add_argument(
        "--read-objects",
        action="store_true",
        help="put the objects of each JSON file named on standard input",
    )
    options = parser.parse_args()
    server = FakeApiServer(
        port=options.port,
        token=options.token,
        watch_list=not options.no_watch_list,
        speaks_protobuf=not options.no_protobuf,
    )
    if options.objects is not None:
        server.load(json.loads(options.objects.read_bytes()))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(server, read_objects=options.read_objects))


if __name__ == "__main__":
    main()
