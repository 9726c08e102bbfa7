"""Packet counters that iptables rules feed in the kernel (nfacct), as metrics under kube-proxy's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pointsman.backends.iptables.settings import INVALID_COUNTER, LOCALHOST_COUNTER
from pointsman.errors import KernelError
from pointsman.kernel import nfacct
from pointsman.obs.registry import Metrics

_COUNTERS = (
    (
        INVALID_COUNTER,
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        "[ALPHA] Packets dropped because conntrack called them INVALID",
    ),
    (
        LOCALHOST_COUNTER,
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        "[ALPHA] Packets accepted at node ports on loopback addresses",
    ),
)


def register(metrics: Metrics) -> None:
    """Serve the counters; one that the kernel does not have has no sample, as in kube-proxy."""
    for counter, name, text in _COUNTERS:
        metrics.add_scraped_counter(name, text, (), _reading(counter))


def _reading(counter: str) -> Callable[[], Mapping[tuple[str, ...], float]]:
    def read() -> Mapping[tuple[str, ...], float]:
        try:
            count = nfacct.read(counter)
        except KernelError:
            return {}
        return {(): float(count.packets)} if count is not None else {}

    return read
