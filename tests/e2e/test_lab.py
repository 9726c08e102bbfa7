"""The lab itself: everybody reaches everybody before any proxy runs, and outcomes are told apart."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness import lab as harness
from tests.harness.flows import Flow

from pointsman.lab import HOSTS, Cluster, Probe, run_probes
from pointsman.lab.hosts import BRIDGE, NODES
from pointsman.lab.netns import Namespace
from pointsman.lab.objects import TARGET_PORT
from pointsman.lab.probe import LONG_TIMEOUT_SECONDS, Kind, connect

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(harness.missing_privilege()), reason=harness.missing_privilege()),
]


def test_every_host_reaches_every_other_with_its_own_address() -> None:
    with harness.build_lab() as cluster:
        probes = [
            Probe(host, HOSTS[server].address(family), TARGET_PORT, protocol)
            for host in HOSTS
            for server in HOSTS
            if HOSTS[server].node
            for family in (4, 6)
            for protocol in ("TCP", "UDP", "SCTP")
        ]
        for probe, outcome in zip(probes, run_probes(cluster, probes), strict=True):
            family = 6 if ":" in probe.address else 4
            assert outcome.kind is Kind.ANSWERED, probe
            server = HOSTS[outcome.by]
            behind_bridge = probe.host in NODES and server.network == probe.host
            own = BRIDGE[probe.host][family] if behind_bridge else HOSTS[probe.host].address(family)
            assert (server.address(family), outcome.seen) == (probe.address, own)


def test_refusal_silence_and_local_prohibition_are_told_apart() -> None:
    with Cluster() as cluster:
        assert connect(cluster, Probe("pod1", HOSTS["pod4"].ipv4, 81)).kind is Kind.REFUSED
        assert connect(cluster, Probe("pod1", HOSTS["pod4"].ipv4, 81, "UDP")).kind is Kind.REFUSED
        for address in ("10.96.0.1", "fd00:10:96::1"):
            for protocol in ("TCP", "UDP", "SCTP", "ICMP"):
                assert connect(cluster, Probe("pod1", address, 81, protocol), 0.2).kind is Kind.TIMED_OUT
        cluster["pod1"].run(("ip", "route", "add", "prohibit", "10.96.0.2/32"))
        assert connect(cluster, Probe("pod1", "10.96.0.2", 81)).kind in (Kind.UNREACHABLE, Kind.NOT_PERMITTED)
        assert connect(cluster, Probe("pod1", HOSTS["pod4"].ipv4, 0, "ICMP")).kind is Kind.ANSWERED


def test_an_open_connection_outlives_its_server() -> None:
    with Cluster() as cluster:
        cluster.serve("pod4", 8080)
        flow = Flow(cluster, Probe("pod1", HOSTS["pod4"].ipv4, 8080))
        assert flow.ask().by == "pod4"
        cluster.servers.stop("pod4")
        assert connect(cluster, Probe("pod1", HOSTS["pod4"].ipv4, 8080)).kind is Kind.REFUSED
        assert flow.ask().by == "pod4"
        flow.close()


def test_the_thread_is_back_home_after_a_visit_that_failed() -> None:
    home = Path("/proc/thread-self/ns/net").readlink()
    namespace = Namespace()
    with contextlib.suppress(ZeroDivisionError), namespace.entered():
        assert Path("/proc/thread-self/ns/net").readlink() != home
        raise ZeroDivisionError
    assert Path("/proc/thread-self/ns/net").readlink() == home
    namespace.close()


def test_the_demo_tells_its_story_and_everything_is_as_it_should_be() -> None:
    done = subprocess.run(
        (sys.executable, "-m", "pointsman", "demo"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b[" not in done.stdout
    for part in ("ClusterIP", "NodePort", "Local", "Session affinity", "A pod dies", "A pod is added"):
        assert f"\n{part}" in done.stdout or part in done.stdout


def test_the_demo_runs_without_root_in_a_user_namespace() -> None:
    ordinary_user = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
    check = (*ordinary_user, "unshare", "--user", "--net", "true")
    if subprocess.run(check, capture_output=True).returncode != 0:
        pytest.skip("user namespaces are not allowed here")
    done = subprocess.run(
        (*ordinary_user, sys.executable, "-m", "pointsman", "demo"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_lost_packet_is_noticed_even_when_the_connection_succeeds() -> None:
    with Cluster() as cluster:
        cluster.serve("pod4", 8080)
        probe = Probe("pod1", HOSTS["pod4"].ipv4, 8080)
        assert connect(cluster, probe).lossless
        drop_once = "type filter hook input priority 0; limit rate 1/day burst 1 packets drop;"
        cluster["pod4"].run(("nft", "-f", "-"), f"table ip t {{ chain c {{ {drop_once} }}; }}")
        late = connect(cluster, probe, LONG_TIMEOUT_SECONDS)
        assert late.kind is Kind.ANSWERED
        assert not late.lossless
