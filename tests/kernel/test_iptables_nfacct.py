"""Named packet counters of a real kernel."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from pointsman.backends import mode_named
from pointsman.backends.iptables.static import INVALID_COUNTER, LOCALHOST_COUNTER
from pointsman.errors import NotSupported
from pointsman.kernel import nfacct
from pointsman.kernel.command import SystemCommands
from pointsman.lab.netns import LabUnavailable, Namespace
from pointsman.obs.registry import Metrics

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def namespace() -> Iterator[Namespace]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        made = Namespace()
    except LabUnavailable as error:
        pytest.skip(str(error))
    made.run(["ip", "link", "set", "lo", "up"])
    with made.entered():
        try:
            nfacct.ensure("probe")
        except NotSupported as error:
            pytest.skip(str(error))
        yield made
    made.close()


def test_a_counter_is_made_once_read_and_deleted() -> None:
    nfacct.ensure("here")
    nfacct.ensure("here")
    assert nfacct.read_packets("here") == 0
    assert nfacct.has_counter("here")
    assert nfacct.delete("here")
    assert not nfacct.delete("here")
    assert nfacct.read_packets("here") is None
    assert not nfacct.has_counter("here")


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_rules_count_into_it_and_keep_it(variant: str) -> None:
    nfacct.ensure("seen")
    rule = ["-p", "udp", "--dport", "9", "-m", "nfacct", "--nfacct-name", "seen", "-j", "ACCEPT"]
    done = SystemCommands().run([f"iptables-{variant}", "-A", "OUTPUT", *rule])
    assert done.status == 0, done.error_text
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(3):
            sender.sendto(b"x", ("127.0.0.1", 9))
    assert nfacct.read_packets("seen") == 3
    assert not nfacct.delete("seen")


def test_the_two_counters_of_the_rules_are_served_as_metrics_once_they_exist() -> None:
    metrics = Metrics("iptables")
    for counter in mode_named("iptables").counters:
        metrics.add_kernel_counter(counter.metric, counter.help, counter.read)

    def samples() -> list[str]:
        text = metrics.render().decode()
        return [line for line in text.splitlines() if line.startswith("kubeproxy_iptables_")]

    assert samples() == []
    nfacct.ensure(INVALID_COUNTER)
    nfacct.ensure(LOCALHOST_COUNTER)
    assert samples() == [
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total 0.0",
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total 0.0",
    ]
