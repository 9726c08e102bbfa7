"""render --diff, verify and explain against rules in a real kernel, the proxy running as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import factory
from tests.harness.waiting import TIME_FACTOR, wait_until
from tests.kernel.nft_kernel import wired_namespace
from tests.unit.cli.live_proxy import live_proxy
from tests.unit.cli.walkthrough import DOCS, Shell, compare, sessions, settled

from pointsman.cli.main import main
from pointsman.lab.netns import Namespace

EXAMPLES = DOCS / "examples" / "shop"
FLAGS = ("--cluster-cidr=10.244.0.0/16",)
DAMAGE = {
    "nftables": "nft delete element ip kube-proxy service-ips { 10.96.0.20 . tcp . 80 }",
    "iptables": "iptables -t nat -F KUBE-NODEPORTS",
}

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and netfilter"),
]


class RunningNode:
    """node-a of the examples, with a proxy in one mode."""

    def __init__(self, namespace: Namespace, directory: Path, mode: str) -> None:
        self.namespace = namespace
        self.mode = mode
        self.socket = directory / "state" / "control.sock"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = (
            *(
                sys.executable,
                "-m",
                "pointsman",
                "run",
                f"--manifests={EXAMPLES}",
                f"--proxy-mode={self.mode}",
            ),
            *(f"--state-dir={self._directory / 'state'}", "--hostname-override=node-a"),
            *("--conntrack-max-per-core=0", *FLAGS),
        )
        with self.namespace.entered(), (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        verify = ["verify", "--control-socket", str(self.socket)]
        wait_until(lambda: main(verify) == 0, details=(self._directory / "log").read_text)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20 * TIME_FACTOR)
            self._process = None

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of its own on the node."""
        with self.namespace.entered():
            return subprocess.run(
                [sys.executable, "-m", "pointsman", *arguments],
                capture_output=True,
                text=True,
                timeout=60 * TIME_FACTOR,
            )

    def diff(self) -> subprocess.CompletedProcess[str]:
        return self.command(
            *("render", "--diff", f"--manifests={EXAMPLES}", "--node=node-a", f"--mode={self.mode}"), *FLAGS
        )


@pytest.fixture(params=sorted(DAMAGE))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningNode]:
    namespace = wired_namespace(
        "address add 203.0.113.11/24 dev eth0",
        "route add default via 192.168.10.1",
        # Silent, but known: asking for it in vain would end in an error after seconds, for whoever waits by then.
        "neighbour add 192.168.10.1 lladdr 02:00:c0:a8:0a:01 dev eth0",
    )
    namespace.write_sysctls({"net/ipv4/ip_forward": "1"})
    running = RunningNode(namespace, tmp_path, request.param)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        namespace.close()


def test_rendered_rules_equal_the_kernel_until_somebody_changes_it(node: RunningNode) -> None:
    node.stop()
    equal = node.diff()
    assert equal.returncode == 0, equal
    node.namespace.run(DAMAGE[node.mode].split())
    different = node.diff()
    assert different.returncode == 1, different
    assert "shop/web:http" in different.stdout


def test_a_running_proxy_explains_with_the_kernel_in_view(node: RunningNode) -> None:
    live = ("--control-socket", str(node.socket))
    answer = node.command("explain", "192.168.10.11:30080", "--from", "outside", *live)
    assert answer.returncode == 0, answer
    assert "Kernel: matches the desired state" in answer.stdout
    assert node.command("status", *live).returncode == 0


UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--reuid=0", "--clear-groups")


def test_without_privileges_the_diff_and_a_trace_say_so(node: RunningNode) -> None:
    for name, arguments in {
        "render": ("--diff", f"--manifests={EXAMPLES}", "--node=node-a", f"--mode={node.mode}"),
        "trace": ("shop/admin", "--control-socket", str(node.socket)),
    }.items():
        with node.namespace.entered():
            answer = subprocess.run(
                [*UNPRIVILEGED, sys.executable, "-m", "pointsman", name, *arguments],
                capture_output=True,
                text=True,
                timeout=60 * TIME_FACTOR,
            )
        assert answer.returncode == 2, answer
        assert f"pointsman {name}:" in answer.stderr
        assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("node", ["nftables"], indirect=True)
def test_the_recipes_for_a_node_print_what_is_shown(node: RunningNode, tmp_path: Path) -> None:
    shown = list(sessions(DOCS / "troubleshooting.md", "node"))
    assert len(shown) > 10
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    with node.namespace.entered():
        compare(Shell(bin_directory, f"--control-socket {node.socket}"), shown, settled)


def test_a_trace_finds_the_address_of_a_pod_by_its_name(
    namespace: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del namespace
    pod = {"addresses": ["10.244.1.5"], "targetRef": {"kind": "Pod", "name": "web-1"}}
    here = factory.node(addresses=[{"type": "InternalIP", "address": "192.168.1.10"}])
    with live_proxy(tmp_path, here, factory.service(), factory.endpoint_slice(pod)) as proxy:
        for client in ("web-1", "pod/web-1", "default/web-1"):
            assert main(["trace", "web", "--from", client, "--seconds=0.05", *proxy.arguments]) == 2
            errors = capsys.readouterr().err
            assert "waiting up to 0.05 s for a connection from 10.244.1.5 to 10.96.0.10:80/TCP" in errors
        assert main(["trace", "web", "--from", "shop/web-1", *proxy.arguments]) == 2
        assert "the name of a pod that is an endpoint" in capsys.readouterr().err
