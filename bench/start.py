"""Processor time of a start, phase by phase, with the parts that the process uses.

The benchmark process measures the whole, from the start of the process until the kernel has everything.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

from bench.measured import print_row, read_children_cpu
from bench.network import build_node
from bench.nftables import CONTEXT
from bench.objects import encode_service, encode_slice
from bench.proxies import IMPORTS, compile_modules, run_process
from tests.fake.protobuf import Encoder
from tests.fake.recording import RecordingBackend

from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.kernel.netlink import Message
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.kube.access import Access
from pointsman.kube.client import ApiClient
from pointsman.kube.protobuf import ProtobufDecoder
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family
from pointsman.model.objects import EndpointSlice, Service, Synced
from pointsman.model.tracker import Changes, Tracker
from pointsman.source.api import ApiSource
from pointsman.sync.reconcile import Reconciler

KINDS = 4
PAGE = 2000
T = TypeVar("T")


class Phases:
    """Processor time by phase, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        result = work()
        self.seconds[name] = time.process_time() - began
        return result

    def rows(self, services: int, endpoints: int) -> list[dict[str, Any]]:
        total = sum(self.seconds.values())
        size = {"services": services, "endpoints": endpoints}
        rows = [
            {**size, "phase": name, "cpu_s": seconds, "of_all_percent": 100 * seconds / total}
            for name, seconds in self.seconds.items()
        ]
        return [*rows, {**size, "phase": "together", "cpu_s": total, "of_all_percent": 100.0}]


def measure_imports() -> float:
    """Of the interpreter with everything a start imports, compiled before as an installed package is."""
    with tempfile.TemporaryDirectory() as directory:
        command, environment = [sys.executable, "-c", IMPORTS], compile_modules(Path(directory))
        before = read_children_cpu()
        subprocess.run(command, env=environment, check=True)
        return read_children_cpu() - before


async def receive(url: str) -> None:
    """Everything that a start is sent, decoded and dropped."""
    client = ApiClient(Access(url, "bench"), qps=0)
    source = ApiSource(client, node_name="n1")
    synced = 0
    async with aclosing(source.events()) as events:
        async for event in events:
            synced += isinstance(event, Synced)
            if synced == KINDS:
                break
    await client.close()


def measure_receiving(objects: list[dict[str, Any]], phases: Phases) -> None:
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "objects.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
        server = [sys.executable, "-m", "tests.fake.serve_api", "--objects", str(work / "objects.json")]
        with run_process(server, work / "api.log"):
            while not (url := (work / "api.log").read_text().strip()):
                time.sleep(0.1)
            asyncio.run(receive(url))  # the server encodes its objects once, for this one
            phases.run("receive", lambda: asyncio.run(receive(url)))


def measure(services: int, endpoints: int) -> list[dict[str, Any]]:
    phases = Phases()
    phases.seconds["interpreter and imports"] = measure_imports()
    made = [json.loads(encode_service(index)) for index in range(services)]
    slices = [json.loads(encode_slice(index, endpoints)) for index in range(services)]
    measure_receiving([build_node(1), *made, *slices], phases)
    encoder = Encoder()

    def pages(kind: str, items: list[dict[str, Any]]) -> list[bytes]:
        return [
            encoder.listing(kind, "v1", {"resourceVersion": "1"}, items[start : start + PAGE])
            for start in range(0, len(items), PAGE)
        ]

    bodies: list[tuple[type[Any], list[bytes]]] = [
        (Service, pages("Service", made)),
        (EndpointSlice, pages("EndpointSlice", slices)),
    ]
    del made, slices
    gc.collect()
    gc.freeze()
    gc.disable()
    decoded = phases.run(
        "decode",
        lambda: [
            list(ProtobufDecoder(kind).decode_page(body).items) for kind, all_ in bodies for body in all_
        ],
    )
    phases.seconds["receive"] -= phases.seconds["decode"]
    trackers = {family: Tracker(family, "n1") for family in Family}

    def track() -> list[Changes]:
        for tracker in trackers.values():
            for objects in decoded:
                for item in objects:
                    if isinstance(item, Service):
                        tracker.upsert_service(item)
                    elif isinstance(item, EndpointSlice):
                        tracker.upsert_slice(item)
        return [tracker.take() for tracker in trackers.values()]

    changes = phases.run("track", track)
    reconciler = Reconciler(RecordingBackend())
    phases.run("plan", lambda: reconciler.sync(changes[0], CONTEXT))
    fragments = phases.run(
        "compile",
        lambda: {name: compile_fragment(plan, CONTEXT) for name, plan in reconciler.plans.items()},
    )

    def encode() -> list[Message]:
        contents = Contents(CONTEXT)
        contents.load(fragments)
        return list(contents.build_full_batch(replace=False, update=False).encode())

    messages = phases.run("encode", encode)
    with Namespace().entered():
        socket = NftablesSocket()
        phases.run("commit in the kernel", lambda: socket.commit(messages))
        socket.close()
    return phases.rows(services, endpoints)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", default="10000x10")


def run(options: argparse.Namespace) -> Any:
    services, endpoints = map(int, options.size.split("x"))
    rows = measure(services, endpoints)
    for row in rows:
        print_row(row)
    return rows
