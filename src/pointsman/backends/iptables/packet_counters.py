"""Packet counters that iptables rules feed in the kernel (nfacct), as metrics under kube-proxy's names."""

from __future__ import annotations

from functools import partial

from pointsman.backends.contract import KernelCounter
from pointsman.backends.iptables.settings import INVALID_COUNTER, LOCALHOST_COUNTER
from pointsman.errors import KernelError
from pointsman.kernel import nfacct


def _packets(counter: str) -> int | None:
    """As in kube-proxy, a counter that the kernel does not have has no sample."""
    try:
        count = nfacct.read(counter)
    except KernelError:
        return None
    return count.packets if count is not None else None


COUNTERS = (
    KernelCounter(
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        "[ALPHA] Packets dropped because conntrack called them INVALID",
        partial(_packets, INVALID_COUNTER),
    ),
    KernelCounter(
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        "[ALPHA] Packets accepted at node ports on loopback addresses",
        partial(_packets, LOCALHOST_COUNTER),
    ),
)
