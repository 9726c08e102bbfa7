"""Faults injected into a running proxy while connections are made through it: python -m bench.reliability (root).

Prints a table: what was done how often, connections made and lost meanwhile, what was repaired, memory grown. With
KUBE_PROXY_BINARY set, moves between kube-proxy and Pointsman are part of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
from tests.faults.churn import flood
from tests.process.api_thread import ApiThread
from tests.process.node_space import (
    NODE_IP,
    NodeProcess,
    NodeSpace,
    Traffic,
    eventually,
    node_object,
    web_service,
    web_slices,
)

from pointsman.testing.apiserver import FakeApiServer

BULK = 300
"""Services that change while the process is killed."""
MODES = ("nftables", "iptables")
NODE_PORT = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080}
WEB = (
    web_service(type="NodePort", externalTrafficPolicy="Cluster", ports=[NODE_PORT]),
    *web_slices(),
    node_object(),
)
FRONTENDS = (("10.96.0.10", 80), ("fd00:10:96::10", 80), (NODE_IP, 30080))


class Row(msgspec.Struct):
    """One line of the table; empty fields do not apply."""

    fault: str
    mode: str
    times: int
    connections: int
    lost: int
    repaired: str = ""
    growth_kb: str = ""
    seconds: float = 0.0


class World(msgspec.Struct):
    """A node with a proxy in one mode, fed by manifests or by an API server."""

    mode: str
    node: NodeSpace
    process: NodeProcess
    api: ApiThread

    def configure(self, mode: str = "", **fields: object) -> None:
        client = {"kubeconfig": str(self.api.kubeconfig), "qps": 500, "burst": 500}
        plain = {**client, "contentType": "application/json"}
        self.process.configure(mode=mode or self.mode, clientConnection=plain, **fields)

    def serves(self, address: str) -> None:
        eventually(lambda: self.node.connects(address), seconds=60)

    def add(self, name: str, number: int) -> None:
        self.api.load(web_service(name, number), *web_slices(name))

    def remove(self, name: str) -> None:
        def gone(server: FakeApiServer) -> None:
            server.delete("Service", f"default/{name}")
            for family in (4, 6):
                server.delete("EndpointSlice", f"default/{name}-v{family}")

        self.api.call(gone)


@contextlib.contextmanager
def world(mode: str) -> Iterator[World]:
    node = NodeSpace()
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        process = NodeProcess(node, directory)
        with ApiThread(node, directory) as api, node.backend():
            made = World(mode, node, process, api)
            api.load(*WEB)
            made.configure()
            process.start(from_api=True)
            process.wait_synced()
            for address, _ in FRONTENDS[:2]:
                made.serves(address)
            try:
                yield made
            finally:
                process.stop(signal.SIGKILL)
    node.close()


def measured(fault: str, mode: str, work: Callable[[World], tuple[int, str, str]]) -> Row:
    """Runs `work` under traffic; it returns how often, what was repaired, and memory grown."""
    with world(mode) as made:
        began = time.monotonic()
        with Traffic(made.node, *FRONTENDS) as traffic:
            times, repaired, growth = work(made)
            traffic.more(30)
        if traffic.failures:
            print(f"  {fault}, {mode}: {traffic.failures[:5]}", flush=True)
        seconds = round(time.monotonic() - began, 1)
        return Row(fault, mode, times, traffic.made, len(traffic.failures), repaired, growth, seconds)


def stops(
    number: signal.Signals, count: int, chance: random.Random
) -> Callable[[World], tuple[int, str, str]]:
    """Ends the process at random moments around its syncs, and starts it again at once.

    Between start and end all of many services change, so that there is much to write when the end comes.
    """
    others = [f"bulk-{n}" for n in range(BULK)]

    def changed(turn: int) -> Callable[[FakeApiServer], None]:
        def work(server: FakeApiServer) -> None:
            for name in others:
                for item in web_slices(name, f"172.30.1.{1 + turn % 200}", f"fd00:30::{1 + turn % 200}"):
                    server.update(item)

        return work

    def work(made: World) -> tuple[int, str, str]:
        for n, name in enumerate(others):
            item = web_service(name)
            addresses = [f"10.97.{n // 250}.{1 + n % 250}", f"fd00:10:97::{n + 1:x}"]
            item["spec"] |= {"clusterIP": addresses[0], "clusterIPs": addresses}
            made.api.load(item, *web_slices(name))
        for turn in range(count):
            made.api.call(changed(turn))
            time.sleep(chance.uniform(0.2, 1.2))
            made.process.stop(number)
            made.process.start(from_api=True)
        made.process.wait_synced()
        made.add("last", 200)
        made.serves("10.96.0.200")
        return count, "", ""

    return work


def _in_mode(made: World, mode: str) -> bool:
    return made.node.get("/proxyMode").body == mode


def mode_switches(count: int) -> Callable[[World], tuple[int, str, str]]:
    def work(made: World) -> tuple[int, str, str]:
        before = 0
        for turn in range(1, count + 1):
            mode = MODES[turn % 2] if made.mode == MODES[0] else MODES[1 - turn % 2]
            made.configure(mode)
            eventually(partial(_in_mode, made, mode))
            made.process.wait_synced()
            time.sleep(0.5)
            if turn == 2:
                before = made.process.resident_kilobytes()
        return count, "", f"{made.process.resident_kilobytes() - before}"

    return work


def server_faults(count: int, chance: random.Random) -> Callable[[World], tuple[int, str, str]]:
    """Stops, cuts, garbage, errors, forgetting; after each the next change must arrive."""

    def away(made: World) -> None:
        made.api.stop()
        time.sleep(chance.uniform(0.1, 1.0))
        made.api.start()

    def sent(trouble: Callable[[FakeApiServer], object]) -> Callable[[World], None]:
        def work(made: World) -> None:
            made.api.call(trouble)

        return work

    def lie(server: FakeApiServer) -> None:
        server.compact()
        empty = {"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": []}
        server.fail_next(200, path="services", body=json.dumps(empty).encode(), watch=False)
        server.end_watches("Service")

    troubles: list[Callable[[World], None]] = [
        away,
        sent(lambda server: server.break_watches(partial=b'{"type":"MODIFIED","object":{"kin')),
        sent(lambda server: server.send_raw("Service", b"\x00\xffgarbage\n")),
        sent(lambda server: server.send_error("EndpointSlice", 410, "Expired")),
        sent(lambda server: server.fail_next(500, path="services")),
        sent(lambda server: server.end_watches()),
        sent(lie),
    ]

    def work(made: World) -> tuple[int, str, str]:
        for turn in range(count):
            chance.choice(troubles)(made)
            made.add(f"turn-{turn}", 20 + turn % 200)
            made.serves(f"10.96.0.{20 + turn % 200}")
            made.remove(f"turn-{turn}")
        return count, "", ""

    return work


def drift(count: int) -> Row:
    """Our table deleted, flushed or emptied by somebody else; here the time until it is back counts."""
    with world("nftables") as made:
        began = time.monotonic()
        waits = []
        damages = (("delete", "table"), ("flush", "table"), ("flush", "map"))
        for turn in range(count):
            verb, what = damages[turn % 3]
            name = ("service-ips",) if what == "map" else ()
            made.node.run("nft", verb, what, "ip", "kube-proxy", *name)
            damaged = time.monotonic()
            made.serves("10.96.0.10")
            waits.append(time.monotonic() - damaged)
        repaired = made.node.metric("pointsman_drift_repaired_total", ip_family="IPv4")
        text = f"{repaired:.0f}, after {sum(waits) / len(waits):.1f} s on average, {max(waits):.1f} s at most"
        return Row("rules taken away by others", "nftables", count, 0, 0, text, "", time.monotonic() - began)


def churn(seconds: float, per_second: int) -> Callable[[World], tuple[int, str, str]]:
    def work(made: World) -> tuple[int, str, str]:
        names = [f"busy-{number}" for number in range(100)]
        for number, name in enumerate(names, start=100):
            made.add(name, number)
        sent = 0
        for sent in flood(made.api, names, 5.0, per_second, 100_000):  # noqa: B007
            pass
        warm = _caught_up(made, sent)
        before = made.process.resident_kilobytes()
        for sent in flood(made.api, names, seconds, per_second, 10_000_000):  # noqa: B007
            pass
        _caught_up(made, warm + sent)
        return sent, "", f"{made.process.resident_kilobytes() - before}"

    return work


def _caught_up(made: World, events: int) -> int:
    name = "kubeproxy_sync_proxy_rules_endpoint_changes_total"
    return int(eventually(lambda: made.node.metric(name), lambda seen: seen >= events, seconds=120))


def handovers(binary: str, count: int) -> Callable[[World], tuple[int, str, str]]:
    """To kube-proxy and back, in the same mode."""

    def work(made: World) -> tuple[int, str, str]:
        for turn in range(count):
            made.process.stop()
            with made.node.namespace.entered():
                reference = subprocess.Popen(
                    (binary, f"--config={made.process.config_file}"),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            made.add(f"theirs-{turn}", 20 + turn)
            made.serves(f"10.96.0.{20 + turn}")
            reference.terminate()
            reference.wait(10)
            made.process.start(from_api=True)
            made.process.wait_synced()
            made.add(f"ours-{turn}", 120 + turn)
            made.serves(f"10.96.0.{120 + turn}")
        return 2 * count, "", ""

    return work


def rows(options: argparse.Namespace) -> Iterator[Row]:
    chance = random.Random(options.seed)
    for mode in MODES:
        if options.kills:
            kills = stops(signal.SIGKILL, options.kills, chance)
            yield measured("kill -9 at a random moment", mode, kills)
        if options.only_kills:
            continue
        yield measured("SIGTERM and start", mode, stops(signal.SIGTERM, options.stops, chance))
        yield measured("API server away, cut, lying", mode, server_faults(options.server_faults, chance))
        yield measured("mode switched while running", mode, mode_switches(options.switches))
        yield measured(
            f"churn of {options.per_second}/s, events", mode, churn(options.churn, options.per_second)
        )
        if options.kube_proxy:
            name = "hand-over with kube-proxy"
            yield measured(name, mode, handovers(options.kube_proxy, options.handovers))
    if not options.only_kills:
        yield drift(options.drift)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=150)
    parser.add_argument("--only-kills", action="store_true")
    parser.add_argument("--stops", type=int, default=30)
    parser.add_argument("--server-faults", type=int, default=30)
    parser.add_argument("--switches", type=int, default=40)
    parser.add_argument("--churn", type=float, default=60.0, help="seconds")
    parser.add_argument("--per-second", type=int, default=10_000)
    parser.add_argument("--handovers", type=int, default=10)
    parser.add_argument("--drift", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kube-proxy", default=os.environ.get("KUBE_PROXY_BINARY", ""))
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    print("| fault | mode | times | connections | lost | repaired | memory, kB | seconds |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    made = []
    for row in rows(options):
        made.append(row)
        print(
            f"| {row.fault} | {row.mode} | {row.times} | {row.connections} | {row.lost} | {row.repaired} "
            f"| {row.growth_kb} | {row.seconds:.0f} |",
            flush=True,
        )
    total = sum(row.connections for row in made)
    lost = sum(row.lost for row in made)
    print(f"\n{total} connections made, {lost} lost")
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode({"faults": made}), indent=1))


if __name__ == "__main__":
    main()
