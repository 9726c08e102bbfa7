"""Which detector of local pod traffic a configuration asks for, per IP family."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.model.addresses import Cidr, Family, cidr_from_text
from pointsman.model.node_context import LocalDetector, LocalMode


def build_local_detector(
    mode: str,
    family: Family,
    *,
    cluster_cidrs: Sequence[str] = (),
    pod_cidrs: Sequence[str] = (),
    bridge_interface: str = "",
    interface_prefix: str = "",
) -> LocalDetector:
    """The detector; a mode without data for this family detects nothing, as in kube-proxy."""
    if mode == "BridgeInterface":
        return LocalDetector(LocalMode.INTERFACE, interface=bridge_interface)
    if mode == "InterfaceNamePrefix":
        return LocalDetector(LocalMode.INTERFACE_PREFIX, interface=interface_prefix)
    cidr = _first_of_family(pod_cidrs if mode == "NodeCIDR" else cluster_cidrs, family)
    if cidr is None or cidr.is_everything:
        return LocalDetector()
    return LocalDetector(LocalMode.CIDR, cidr=cidr)


def _first_of_family(texts: Sequence[str], family: Family) -> Cidr | None:
    for text in texts:
        cidr = cidr_from_text(text)
        if cidr is not None and cidr.family is family:
            return cidr
    return None
