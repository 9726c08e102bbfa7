"""Sets of other programs, and our own ipsets while rules of other programs use them."""

from __future__ import annotations

import contextlib
import shutil
import tracemalloc
from collections.abc import Iterator

import pytest
from tests.kernel.nft_kernel import needs_nft, new_namespace

from pointsman.backends.contract import CleanupStatus
from pointsman.backends.ipvs.cleanup import cleanup
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.ipset import IpsetSocket
from pointsman.kernel.ipvs_objects import SetEntry, SetHeader, SetType
from pointsman.lab.netns import Namespace
from pointsman.machine.foreign_chains import ForeignChains
from pointsman.model.addresses import Family

pytestmark = needs_nft

MAX_BYTES = 20 << 20


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    made = new_namespace()
    with made.entered():
        yield made
    made.close()


def test_a_large_external_set_is_not_kept_in_memory(namespace: Namespace) -> None:
    elements = ", ".join(f"20.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(100_000))
    namespace.run(
        ["nft", "-f", "-"],
        "table inet firewall { set banned { type ipv4_addr; elements = { "
        + elements
        + " }; }; chain entry { type filter hook input priority 0; ip saddr @banned drop; }; }\n",
    )
    tracemalloc.start()
    try:
        reading = ForeignChains(SystemCommands()).read(Family.IPV4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not reading.not_read
    (rule,) = reading.chains["inet firewall", "entry"].rules
    assert rule.conditions.endswith("in @banned")
    assert peak < MAX_BYTES


@pytest.mark.skipif(shutil.which("ipset") is None, reason="ipset is the independent reader")
def test_an_ipset_in_use_is_kept_and_named_while_the_others_are_removed(namespace: Namespace) -> None:
    with contextlib.closing(IpsetSocket()) as sets:
        for name in ("KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-IPVS-IPS"):
            sets.create(SetHeader(name, SetType.HASH_IP, Family.IPV4))
    rule = ("-m", "set", "--match-set", "KUBE-CLUSTER-IP", "src", "-j", "DROP")
    namespace.run(["iptables-nft", "-A", "INPUT", *rule])
    planned = list(cleanup((), dry_run=True))
    items = list(cleanup(()))
    assert namespace.run(["ipset", "list", "-n"]).split() == ["KUBE-CLUSTER-IP"]
    (kept,) = (item for item in items if item.status is CleanupStatus.FAILED)
    assert "KUBE-CLUSTER-IP" in kept.why
    assert [item.count for item in items if item.kind == "ipsets"] == [2]
    assert [item.count for item in planned] == [3]


def test_only_the_entries_of_our_ipsets_are_read(namespace: Namespace) -> None:
    entries = {SetEntry((0x0A000000 + n).to_bytes(4, "big")) for n in range(3)}
    with contextlib.closing(IpsetSocket()) as sets:
        for name in ("KUBE-IPVS-IPS", "banned"):
            sets.create(SetHeader(name, SetType.HASH_IP, Family.IPV4))
            assert sets.add(name, entries) == {}
        assert sets.list_entries(("KUBE-IPVS-IPS", "KUBE-LOOP-BACK")) == {"KUBE-IPVS-IPS": entries}
