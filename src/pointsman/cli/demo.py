"""`pointsman demo`: a small cluster on this machine, a proxy at work in it, and who answers, in under half a minute.

Everything happens in network namespaces of this process; the machine's own network is not touched, and nothing is left
when the process ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from pointsman.cli.arguments import add_colour, parser
from pointsman.cli.output import screen
from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import HOSTS
from pointsman.lab.netns import LabUnavailable, Namespace, gain_privileges
from pointsman.lab.objects import TARGET_PORT, LabService, backends
from pointsman.lab.picture import MAP, answer_bars, median_milliseconds, path_through_table
from pointsman.lab.probe import LONG_TIMEOUT_SECONDS, Kind, Outcome, Probe, TrafficGenerator, connect
from pointsman.lab.proxy import LabProxy, ProxyFailed, configuration
from pointsman.screen import Screen

CONNECTIONS = 300
_METRICS_PORT = 10249
_SYNC_SECONDS = re.compile(
    r'^kubeproxy_sync_proxy_rules_duration_seconds_sum\{ip_family="(\w+)"\} (\S+)', re.MULTILINE
)
WEB = LabService("web", 1, backends("pod1", "pod2", "pod4"), type="NodePort")
LOCAL = LabService("shop", 2, backends("pod1", "pod2", "pod4"), type="LoadBalancer", external_policy="Local")
STICKY = LabService("cart", 3, backends("pod1", "pod2", "pod4"), affinity_seconds=10800)


def command() -> argparse.ArgumentParser:
    made = parser("demo", "A small cluster of network namespaces, served by Pointsman, with real packets.")
    made.add_argument("--keep", action="store_true", help="leave the cluster up afterwards, to explore it")
    add_colour(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 when everything behaved, 1 when something did not, 2 when the lab cannot run here."""
    options = command().parse_args(argv)
    shown_on = screen(options.color)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        privileges = gain_privileges()
        with tempfile.TemporaryDirectory(prefix="pointsman-demo-") as directory:
            return _Demo(shown_on, Path(directory), privileges).run(keep=options.keep)
    except LabUnavailable as unavailable:
        sys.stderr.write(f"pointsman demo: {unavailable}\n")
        return 2
    except ProxyFailed as failed:
        sys.stderr.write(f"pointsman demo: {failed}\n")
        return 1


class _Demo:
    """The story, shown while it happens."""

    def __init__(self, screen: Screen, directory: Path, privileges: str) -> None:
        self._screen = screen
        self._privileges = privileges
        self._directory = directory
        self._surprises = 0
        self._synced: dict[str, float] = {}
        self._cluster: Cluster
        self._proxy: LabProxy

    def run(self, *, keep: bool) -> int:
        began = time.monotonic()
        self._say(self._screen.bold("Pointsman: a Kubernetes Service proxy at work, with real packets"), "")
        with Cluster() as self._cluster:
            built = time.monotonic() - began
            self._say(*self._screen.plain(MAP).splitlines(), "")
            self._say(
                f"Each name is a network namespace of this process (built in {built * 1000:.0f} ms).",
                "Pods run an echo server that says who answered and which client address it saw.",
            )
            for host in HOSTS:
                if host.startswith("pod"):
                    self._cluster.serve(host, TARGET_PORT)
            self._proxy = LabProxy(self._cluster, self._directory)
            with contextlib.ExitStack() as stack:
                stack.callback(self._proxy.stop)
                self._start()
                self._frontends()
                self._changes()
                self._crash()
                self._kernel()
                self._finish(time.monotonic() - began)
                if keep:
                    self._explore()
        return 1 if self._surprises else 0

    def _start(self) -> None:
        self._proxy.configure(configuration("nftables"))
        self._proxy.write([WEB, LOCAL, STICKY])
        self._title("Start", "pointsman run --manifests DIR, on node n1, nftables mode")
        self._proxy.start()
        seconds = self._proxy.wait()
        self._note(f"3 Services are served {seconds:.2f} s after the process started{self._sync_times()}")

    def _frontends(self) -> None:
        address = WEB.address("cluster", 4)
        self._title("ClusterIP", f"pod3 opens {CONNECTIONS} connections to Service web, {address}:80")
        self._show(
            Probe("pod3", address, 80),
            ("pod1", "pod2", "pod4"),
            "All ready pods share; they see the client's own address.",
        )
        node = HOSTS["n1"].ipv4
        self._title("NodePort", f"an external client uses node n1, {node}:{WEB.node_port}")
        self._show(
            Probe("client", node, WEB.node_port),
            ("pod1", "pod2", "pod4"),
            "Masqueraded: the pods see node n1, so that answers come back through it.",
        )
        address = LOCAL.address("lb", 4)
        self._title("externalTrafficPolicy: Local", f"an external client uses load balancer IP {address}:80")
        self._show(
            Probe("client", address, 80),
            ("pod1", "pod2"),
            "Only pods of this node, and the client's own address is kept.",
        )
        address = STICKY.address("cluster", 4)
        self._title("Session affinity", f"four clients, 30 connections each, to Service cart, {address}:80")
        for client in ("pod1", "pod3", "client", "client2"):
            outcomes = self._ask(Probe(client, address, 80), 30)
            answered = sorted({outcome.by for outcome in outcomes})
            self._expect(len(answered) == 1)
            self._note(f"{client:9} -> {', '.join(answered)}")

    def _changes(self) -> None:
        self._title("A pod dies", "pod2 leaves the manifests while connections keep coming")
        fewer = tuple(_with(service, "pod1", "pod4") for service in (WEB, LOCAL, STICKY))
        with self._traffic() as traffic:
            took = self._proxy.apply(fewer)
        self._cluster.servers.stop("pod2")
        self._changed(took, traffic)
        self._show(Probe("pod3", WEB.address("cluster", 4), 80), ("pod1", "pod4"), "", also=("pod2",))
        self._title("A pod is added", "pod5 joins on node n2")
        more = (_with(WEB, "pod1", "pod4", "pod5"), *fewer[1:])
        with self._traffic() as traffic:
            took = self._proxy.apply(more)
        self._changed(took, traffic)
        self._show(Probe("pod3", WEB.address("cluster", 4), 80), ("pod1", "pod4", "pod5"), "")

    def _changed(self, took: float, traffic: TrafficGenerator) -> None:
        self._note(
            f"applied {took * 1000:.0f} ms after the file changed, "
            f"200 ms of them to see that it stays quiet{self._sync_times()}"
        )
        self._note(f"{self._failed(traffic)} failed meanwhile")

    def _crash(self) -> None:
        self._title("kill -9", "the proxy dies and starts again while connections keep coming")
        with self._traffic() as traffic:
            self._proxy.stop(signal.SIGKILL)
            self._synced.clear()
            time.sleep(0.2)
            self._proxy.write((_with(WEB, "pod1", "pod4", "pod5"),))
            self._proxy.start()
            seconds = self._proxy.wait()
        self._note(
            f"back after {seconds:.2f} s{self._sync_times()}; {self._failed(traffic)} failed meanwhile"
        )

    def _kernel(self) -> None:
        address = WEB.address("cluster", 4)
        self._title("In the kernel", f"what a packet to {address} meets (nft list table ip kube-proxy)")
        if not shutil.which("nft"):
            self._note("the program nft is not installed; `pointsman render` prints the same rules")
            return
        listing = self._cluster["n1"].run(("nft", "list", "table", "ip", "kube-proxy"))
        for line in path_through_table(listing, address):
            self._say("   " + (line if line.startswith(" ") else self._screen.bold(line)))

    def _finish(self, seconds: float) -> None:
        self._say("")
        if self._surprises:
            self._say(self._screen.bad(f"{self._surprises} things were not as they should be."))
        else:
            self._say(self._screen.good(f"Everything behaves as it should, in {seconds:.1f} s."))

    def _explore(self) -> None:
        pid = os.getpid()
        enter = "nsenter"
        if self._privileges != "root":
            enter += f" --user=/proc/{pid}/ns/user --preserve-credentials"
        self._say(
            "",
            self._screen.bold("Left running. In another terminal, as the same user:"),
            f"  {enter} --net={self._cluster['n1'].path} nft list table ip kube-proxy",
            f"  {enter} --net={self._cluster['client'].path} nc {HOSTS['n1'].ipv4} {WEB.node_port}     # as the external client",
            f"  $EDITOR {self._proxy.manifests}/cluster.json   # change Services and endpoints",
            f"  tail -f {self._proxy.log}",
            "",
            f"Ctrl-C here (or kill {pid}) removes everything.",
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.pause()

    def _show(self, probe: Probe, wanted: Sequence[str], moral: str, also: Sequence[str] = ()) -> None:
        outcomes = self._ask(probe, CONNECTIONS)
        self._expect({outcome.by for outcome in outcomes} == set(wanted))
        for line in answer_bars(outcomes, self._screen, (*wanted, *also)):
            self._say("   " + line)
        failed = sum(outcome.kind is not Kind.ANSWERED for outcome in outcomes)
        self._note(
            f"{moral} {self._count(failed, 'connection')} failed, "
            f"median {median_milliseconds(outcomes):.2f} ms.".lstrip()
        )

    def _ask(self, probe: Probe, count: int) -> list[Outcome]:
        """One after the other, so that the times are those of single connections."""
        return [connect(self._cluster, probe, LONG_TIMEOUT_SECONDS) for _ in range(count)]

    def _traffic(self) -> TrafficGenerator:
        """Connections to web, repeated until the block ends."""
        return TrafficGenerator(self._cluster, [Probe("pod3", WEB.address("cluster", 4), 80)] * 5)

    def _failed(self, traffic: TrafficGenerator) -> str:
        self._expect(not traffic.failures)
        return self._count(len(traffic.failures), "connection")

    def _sync_times(self) -> str:
        """Time spent in syncs since this was last asked."""
        now = sync_seconds(self._cluster["n1"])
        spent = {family: seconds - self._synced.get(family, 0.0) for family, seconds in now.items()}
        if not spent:
            return ""
        self._synced = now
        times = ", ".join(f"{family} {seconds * 1000:.1f} ms" for family, seconds in sorted(spent.items()))
        return f" (syncs: {times})"

    def _expect(self, fulfilled: bool) -> None:
        self._surprises += not fulfilled

    def _count(self, number: int, what: str) -> str:
        text = f"{number} {what}{'' if number == 1 else 's'}"
        return self._screen.bad(text) if number else self._screen.good(text)

    def _title(self, title: str, text: str) -> None:
        self._say("", f"{self._screen.bold(title)}: {text}")

    def _note(self, text: str) -> None:
        self._say("   " + text)

    def _say(self, *lines: str) -> None:
        sys.stdout.write("".join(line + "\n" for line in lines))
        sys.stdout.flush()


def sync_seconds(node: Namespace) -> dict[str, float]:
    """Time spent in syncs, by IP family, from the metrics of the proxy there; empty when it cannot be asked."""
    metrics = HTTPConnection("127.0.0.1", _METRICS_PORT, timeout=2)
    try:
        with node.entered():
            metrics.connect()
        metrics.request("GET", "/metrics")
        text = metrics.getresponse().read().decode()
    except OSError:
        return {}
    finally:
        metrics.close()
    return {family: float(seconds) for family, seconds in _SYNC_SECONDS.findall(text)}


def _with(service: LabService, *hosts: str) -> LabService:
    return msgspec.structs.replace(service, backends=backends(*hosts))
