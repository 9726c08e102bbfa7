"""`pointsman demo`: a small cluster on this machine, a proxy at work in it, and who answers, in under half a minute.

Everything happens in network namespaces of this process; the machine's own network is not touched, and nothing is left
when the process ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pointsman.cli.arguments import add_colour, create_parser
from pointsman.cli.control_client import NoProxy, ask
from pointsman.cli.output import detect_screen
from pointsman.lab.cluster import Cluster
from pointsman.lab.hosts import HOSTS
from pointsman.lab.netns import LabUnavailable, gain_privileges
from pointsman.lab.objects import TARGET_PORT, LabService, backends
from pointsman.lab.picture import MAP, compute_median_milliseconds, find_path_through_table, render_answers
from pointsman.lab.probe import LONG_TIMEOUT_SECONDS, Kind, Outcome, Probe, TrafficGenerator, connect
from pointsman.lab.proxy import LabProxy, ProxyFailed, configuration
from pointsman.report.status import StatusReport
from pointsman.screen import Screen
from pointsman.text import format_count

CONNECTIONS = 300
WEB = LabService("web", 1, backends("pod1", "pod2", "pod4"), type="NodePort")
LOCAL = LabService("shop", 2, backends("pod1", "pod2", "pod4"), type="LoadBalancer", external_policy="Local")
STICKY = LabService("cart", 3, backends("pod1", "pod2", "pod4"), affinity_seconds=10800)


def build_parser() -> argparse.ArgumentParser:
    made = create_parser(
        "demo",
        "Build a small cluster from network namespaces, serve it with Pointsman, and send real packets through it.",
    )
    made.add_argument(
        "--keep", action="store_true", help="keep the cluster running afterwards, to explore it"
    )
    add_colour(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 when everything behaved, 1 when something did not, 2 when the lab cannot run here."""
    options = build_parser().parse_args(argv)
    shown_on = detect_screen(options.color)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        privileges = gain_privileges()
        with tempfile.TemporaryDirectory(prefix="pointsman-demo-") as directory:
            return _run_demo(_Output(shown_on), Path(directory), privileges, keep=options.keep)
    except LabUnavailable as unavailable:
        sys.stderr.write(f"pointsman demo: {unavailable}\n")
        return 2
    except (ProxyFailed, NoProxy) as failed:
        sys.stderr.write(f"pointsman demo: {failed}\n")
        return 1


class _Output:
    """What the demo shows while it happens, and how often something was not as it should be."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.surprises = 0

    def say(self, *lines: str) -> None:
        sys.stdout.write("".join(line + "\n" for line in lines))
        sys.stdout.flush()

    def start_part(self, title: str, text: str) -> None:
        self.say("", f"{self.screen.bold(title)}: {text}")

    def note(self, text: str) -> None:
        self.say("   " + text)

    def expect(self, fulfilled: bool) -> None:
        self.surprises += not fulfilled

    def format_failures(self, failures: int) -> str:
        text = format_count(failures, "connection")
        return self.screen.bad(text) if failures else self.screen.good(text)


def _run_demo(out: _Output, directory: Path, privileges: str, *, keep: bool) -> int:
    began = time.monotonic()
    out.say(out.screen.bold("Pointsman: a Kubernetes Service proxy at work, with real packets"), "")
    with Cluster() as cluster:
        built = time.monotonic() - began
        out.say(*out.screen.to_plain(MAP).splitlines(), "")
        out.say(
            f"Each name is a network namespace of this process (built in {built * 1000:.0f} ms).",
            "Pods run an echo server that says who answered and which client address it saw.",
        )
        for host in HOSTS:
            if host.startswith("pod"):
                cluster.serve(host, TARGET_PORT)
        proxy = LabProxy(cluster, directory)
        with contextlib.ExitStack() as stack:
            stack.callback(proxy.stop)
            demo = _Demo(out, cluster, proxy)
            demo.start()
            demo.show_frontends()
            demo.change_endpoints()
            demo.kill_proxy()
            _show_kernel(out, cluster)
            _conclude(out, time.monotonic() - began)
            if keep:
                _wait_for_explorer(out, cluster, proxy, privileges)
    return 1 if out.surprises else 0


class _Demo:
    """The steps, each with connections and their results."""

    def __init__(self, out: _Output, cluster: Cluster, proxy: LabProxy) -> None:
        self._out, self._cluster, self._proxy = out, cluster, proxy
        self._shown_until = 0.0
        """Unix time: syncs until then were shown."""

    def start(self) -> None:
        self._proxy.configure(configuration("nftables"))
        self._proxy.write([WEB, LOCAL, STICKY])
        self._out.start_part("Start", "pointsman run --manifests DIR, on node n1, nftables mode")
        self._proxy.start()
        seconds = self._proxy.wait()
        self._out.note(
            f"3 Services are served {seconds:.2f} s after the process started{self._describe_syncs()}"
        )

    def show_frontends(self) -> None:
        address = WEB.address("cluster", 4)
        self._out.start_part(
            "ClusterIP", f"pod3 opens {CONNECTIONS} connections to Service web, {address}:80"
        )
        self._show_answers(
            Probe("pod3", address, 80),
            ("pod1", "pod2", "pod4"),
            "All ready pods share; they see the client's own address.",
        )
        node = HOSTS["n1"].ipv4
        self._out.start_part("NodePort", f"an external client uses node n1, {node}:{WEB.node_port}")
        self._show_answers(
            Probe("client", node, WEB.node_port),
            ("pod1", "pod2", "pod4"),
            "Masqueraded: the pods see node n1, so that answers come back through it.",
        )
        address = LOCAL.address("lb", 4)
        self._out.start_part(
            "externalTrafficPolicy: Local", f"an external client uses load balancer IP {address}:80"
        )
        self._show_answers(
            Probe("client", address, 80),
            ("pod1", "pod2"),
            "Only pods of this node, and the client's own address is kept.",
        )
        address = STICKY.address("cluster", 4)
        self._out.start_part(
            "Session affinity", f"four clients, 30 connections each, to Service cart, {address}:80"
        )
        for client in ("pod1", "pod3", "client", "client2"):
            outcomes = self._ask(Probe(client, address, 80), 30)
            answered = sorted({outcome.by for outcome in outcomes})
            self._out.expect(len(answered) == 1)
            self._out.note(f"{client:9} -> {', '.join(answered)}")

    def change_endpoints(self) -> None:
        self._out.start_part("A pod dies", "pod2 leaves the manifests while connections keep coming")
        fewer = tuple(_replace_backends(service, "pod1", "pod4") for service in (WEB, LOCAL, STICKY))
        with self._keep_connecting() as traffic:
            took = self._proxy.apply(fewer)
        self._cluster.servers.stop("pod2")
        self._report_change(took, traffic)
        self._show_answers(Probe("pod3", WEB.address("cluster", 4), 80), ("pod1", "pod4"), "", also=("pod2",))
        self._out.start_part("A pod is added", "pod5 joins on node n2")
        more = (_replace_backends(WEB, "pod1", "pod4", "pod5"), *fewer[1:])
        with self._keep_connecting() as traffic:
            took = self._proxy.apply(more)
        self._report_change(took, traffic)
        self._show_answers(Probe("pod3", WEB.address("cluster", 4), 80), ("pod1", "pod4", "pod5"), "")

    def kill_proxy(self) -> None:
        self._out.start_part("kill -9", "the proxy dies and starts again while connections keep coming")
        with self._keep_connecting() as traffic:
            self._proxy.stop(signal.SIGKILL)
            time.sleep(0.2)
            self._proxy.write((_replace_backends(WEB, "pod1", "pod4", "pod5"),))
            self._proxy.start()
            seconds = self._proxy.wait()
        self._out.note(
            f"back after {seconds:.2f} s{self._describe_syncs()}; {self._count_failed(traffic)} failed meanwhile"
        )

    def _describe_syncs(self) -> str:
        """Return how long the proxy took for syncs since this was last asked."""
        since, self._shown_until = self._shown_until, time.time()
        status = ask(self._proxy.directory / "state" / "control.sock", "/status", StatusReport)
        times = (
            (family.family, sum(point.seconds for point in family.history if point.at > since))
            for family in status.families
        )
        return f" (syncs: {', '.join(f'{family} {seconds * 1000:.1f} ms' for family, seconds in times)})"

    def _report_change(self, took: float, traffic: TrafficGenerator) -> None:
        self._out.note(
            f"applied {took * 1000:.0f} ms after the file changed, "
            f"200 ms of them to see that it stays quiet{self._describe_syncs()}"
        )
        self._out.note(f"{self._count_failed(traffic)} failed meanwhile")

    def _show_answers(
        self, probe: Probe, wanted: Sequence[str], moral: str, also: Sequence[str] = ()
    ) -> None:
        outcomes = self._ask(probe, CONNECTIONS)
        self._out.expect({outcome.by for outcome in outcomes} == set(wanted))
        for line in render_answers(outcomes, self._out.screen, (*wanted, *also)):
            self._out.say("   " + line)
        failed = sum(outcome.kind is not Kind.ANSWERED for outcome in outcomes)
        self._out.note(
            f"{moral} {self._out.format_failures(failed)} failed, "
            f"median {compute_median_milliseconds(outcomes):.2f} ms.".lstrip()
        )

    def _ask(self, probe: Probe, count: int) -> list[Outcome]:
        """Connect one after the other, so that the times are those of single connections."""
        return [connect(self._cluster, probe, LONG_TIMEOUT_SECONDS) for _ in range(count)]

    def _keep_connecting(self) -> TrafficGenerator:
        """Connect to web again and again, until the block ends."""
        return TrafficGenerator(self._cluster, [Probe("pod3", WEB.address("cluster", 4), 80)] * 5)

    def _count_failed(self, traffic: TrafficGenerator) -> str:
        self._out.expect(not traffic.failures)
        return self._out.format_failures(len(traffic.failures))


def _show_kernel(out: _Output, cluster: Cluster) -> None:
    address = WEB.address("cluster", 4)
    out.start_part("In the kernel", f"the rules for packets to {address} (nft list table ip kube-proxy)")
    if not shutil.which("nft"):
        out.note("the program nft is not installed; `pointsman render` prints the same rules")
        return
    listing = cluster["n1"].run(("nft", "list", "table", "ip", "kube-proxy"))
    for line in find_path_through_table(listing, address):
        out.say("   " + (line if line.startswith(" ") else out.screen.bold(line)))


def _conclude(out: _Output, seconds: float) -> None:
    out.say("")
    if out.surprises:
        out.say(out.screen.bad(f"{out.surprises} things were not as they should be."))
    else:
        out.say(out.screen.good(f"Everything behaves as it should, in {seconds:.1f} s."))


def _wait_for_explorer(out: _Output, cluster: Cluster, proxy: LabProxy, privileges: str) -> None:
    pid = os.getpid()
    enter = "nsenter"
    if privileges != "root":
        enter += f" --user=/proc/{pid}/ns/user --preserve-credentials"
    out.say(
        "",
        out.screen.bold("Left running. In another terminal, as the same user:"),
        f"  {enter} --net={cluster['n1'].path} nft list table ip kube-proxy",
        f"  {enter} --net={cluster['client'].path} nc {HOSTS['n1'].ipv4} {WEB.node_port}     # as the external client",
        f"  $EDITOR {proxy.manifests}/cluster.json   # change Services and endpoints",
        f"  tail -f {proxy.log}",
        "",
        f"Ctrl-C here (or kill {pid}) removes everything.",
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.pause()


def _replace_backends(service: LabService, *hosts: str) -> LabService:
    return msgspec.structs.replace(service, backends=backends(*hosts))
