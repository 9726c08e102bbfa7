"""The process ends, begins, changes its mode, makes room for another."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial

from bench.reliability.world import Done, FaultyNode, Work
from tests.fake.apiserver import FakeApiServer
from tests.harness.kube_objects import web_service, web_slices
from tests.harness.node import NodeProcess
from tests.harness.waiting import wait_until

BULK = 300
"""Services that change while the process is killed."""
MODES = ("nftables", "iptables")


def stops(number: signal.Signals, count: int, chance: random.Random) -> Work:
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

    def work(made: FaultyNode) -> Done:
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
        return Done(count)

    return work


def _in_mode(made: FaultyNode, mode: str) -> bool:
    return made.node.get("/proxyMode").body == mode


def mode_switches(count: int) -> Work:
    def work(made: FaultyNode) -> Done:
        before = 0
        for turn in range(1, count + 1):
            mode = MODES[turn % 2] if made.mode == MODES[0] else MODES[1 - turn % 2]
            made.configure(mode)
            wait_until(partial(_in_mode, made, mode))
            made.process.wait_synced()
            time.sleep(0.5)
            if turn == 2:
                before = made.process.resident_kilobytes()
        return Done(count, growth_kb=f"{made.process.resident_kilobytes() - before}")

    return work


def handovers(binary: str, count: int) -> Work:
    """To kube-proxy and back, in the same mode."""

    def work(made: FaultyNode) -> Done:
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
        return Done(2 * count)

    return work


def instances(count: int) -> Work:
    """A second instance is rejected, then waits for the first and takes over when that ends."""

    def work(made: FaultyNode) -> Done:
        for _ in range(count):
            first = made.process
            second = NodeProcess(made.node, first.directory)
            second.log = first.directory / ("odd.log" if first.log.name == "even.log" else "even.log")
            second.log.unlink(missing_ok=True)
            second.start(from_api=True)
            assert second.wait_exit() == 1
            assert f"pid {first.pid}" in second.log_text, second.log_text
            second.start("--wait-for-instance", from_api=True)
            wait_until(partial(_waits, second))
            first.stop()
            made.process = second
            second.wait_synced()
        made.add("last", 200)
        made.serves("10.96.0.200")
        return Done(2 * count)

    return work


def _waits(process: NodeProcess) -> bool:
    return "Waiting for another instance" in process.log_text
