"""What the kernel holds, as last read and as it acknowledged since."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.backends.ipvs.fragment import SetMember
from pointsman.backends.ipvs.rules import RuleSet
from pointsman.backends.netfilter.jumps import Jump
from pointsman.kernel.ipset_objects import SetEntry
from pointsman.kernel.ipvs_objects import RealKey, VirtualKey, VirtualServer


class Known:
    """The objects of one IP family; each step of `batch` knows how it changes them."""

    def __init__(self, set_names: Iterable[str] = ()) -> None:
        self.servers: dict[VirtualKey, VirtualServer] = {}
        self.weights: dict[VirtualKey, dict[RealKey, int]] = {}
        self.entries: dict[str, set[SetEntry]] = {name: set() for name in set_names}
        self.addresses: set[bytes] = set()
        self.rules: RuleSet | None = None
        """None while they have not been looked at, so that they are written again."""
        self.missing_jumps: tuple[Jump, ...] = ()
        self.iptables_mode_serves = False
        """Its rules still lead to endpoints, and do so until ours replace them."""
        self.references: dict[str, int] = {}
        """How many rules match on each set."""

    def has_entry(self, member: SetMember) -> bool:
        name, entry = member
        return entry in self.entries[name]
