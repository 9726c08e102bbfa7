"""The table of proxy modes, as far as files, flags and completion need it: no mode is imported for that.

A new mode needs one package that holds its `Mode`, and one row here.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

IPTABLES, IPVS, NFTABLES = "iptables", "ipvs", "nftables"


class ModeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One mode; blocks are named by their attribute of the configuration."""

    module: str
    """Where its `MODE` is."""
    periods: str = IPTABLES
    """The block with its sync periods."""
    masquerade: str = IPTABLES
    """The block with its masquerade settings."""
    node_ports: tuple[str, ...] = ()
    """`nodePortAddresses` where the configuration has none; empty means every address."""
    gate: str = ""
    """The feature gate that it needs."""


MODES = {
    IPTABLES: ModeRow(module="pointsman.backends.iptables.mode"),
    IPVS: ModeRow(module="pointsman.backends.ipvs.mode", periods=IPVS, gate="KubeProxyIPVS"),
    NFTABLES: ModeRow(
        module="pointsman.backends.nftables.mode",
        periods=NFTABLES,
        masquerade=NFTABLES,
        node_ports=("primary",),
    ),
}
"""Clean-up goes through them from the last to the first: the rules of ipvs mode lead to chains that it shares with
iptables mode."""

BY_PREFERENCE = (NFTABLES, IPTABLES)
"""The order in which modes are tried where none is configured; offline commands assume the first."""


def find_mode_rows(mode: str) -> Iterable[ModeRow]:
    """Return the row of the mode, or of every candidate while none is chosen."""
    return [MODES[name] for name in ((mode,) if mode in MODES else sorted(BY_PREFERENCE))]
