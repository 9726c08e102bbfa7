"""From JSON to plans: decode, track and plan N Services with E endpoints each; time, memory, one event.

With --services, one size in this process.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from typing import Any

import msgspec
from bench.measured import print_table, run_child
from bench.objects import encode_service, encode_slice
from bench.proxies import read_memory_mib
from tests.fake.recording import RecordingBackend

from pointsman.model.addresses import Family
from pointsman.model.node_context import NodeContext
from pointsman.model.objects import EndpointSlice, Service
from pointsman.model.tracker import Tracker
from pointsman.sync.reconcile import Reconciler


def measure(services: int, endpoints: int, events: int = 500) -> dict[str, float]:
    decode_service = msgspec.json.Decoder(Service).decode
    decode_slice = msgspec.json.Decoder(EndpointSlice).decode
    context = NodeContext(Family.IPV4, "n1")
    tracker, reconciler = Tracker(Family.IPV4, "n1"), Reconciler(RecordingBackend())
    gc.collect()
    before, seconds = read_memory_mib(), dict.fromkeys(("decode", "track"), 0.0)
    for index in range(services):
        raw_service, raw_slice = encode_service(index), encode_slice(index, endpoints)
        t0 = time.process_time()
        service, endpoint_slice = decode_service(raw_service), decode_slice(raw_slice)
        t1 = time.process_time()
        tracker.upsert_service(service)
        tracker.upsert_slice(endpoint_slice)
        t2 = time.process_time()
        seconds["decode"] += t1 - t0
        seconds["track"] += t2 - t1
    t3 = time.process_time()
    reconciler.sync(tracker.take(), context)
    seconds["plan"] = time.process_time() - t3
    gc.collect()
    result = {
        "services": services,
        "endpoints": endpoints,
        "decode_cpu_s": seconds["decode"],
        "track_cpu_s": seconds["track"],
        "plan_cpu_s": seconds["plan"],
        "model_mb": (read_memory_mib() - before) * 1.048576,
    }
    times: list[float] = []
    for event in range(events):
        index = event * 7919 % services
        raw = encode_slice(index, endpoints, generation=1 + event)
        started = time.perf_counter()
        tracker.upsert_slice(decode_slice(raw))
        reconciler.sync(tracker.take(), context)
        times.append((time.perf_counter() - started) * 1000)
    result["event_p50_ms"] = statistics.median(times)
    result["event_p99_ms"] = statistics.quantiles(times, n=100)[98]
    return result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--services", type=int)
    parser.add_argument("--endpoints", type=int, default=10)


def run(options: argparse.Namespace) -> Any:
    if options.services is not None:
        print(json.dumps(measure(options.services, options.endpoints)))
        return None
    sizes = ((1000, 10), (10_000, 10), (5000, 50), (50_000, 5))
    rows = [
        run_child("model", "--services", str(services), "--endpoints", str(endpoints))
        for services, endpoints in sizes
    ]
    print_table(rows)
    return rows
