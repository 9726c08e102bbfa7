"""Netfilter chains of other programs as matches and actions.

What is not understood is kept as a match without a field, so that following the rules shows what is unknown.
"""

from __future__ import annotations

import enum

import msgspec


class PacketField(enum.Enum):
    """What a match compares."""

    FAMILY = "family"
    SOURCE = "saddr"
    DESTINATION = "daddr"
    PROTOCOL = "protocol"
    SOURCE_PORT = "sport"
    DESTINATION_PORT = "dport"
    IN_INTERFACE = "iifname"
    OUT_INTERFACE = "oifname"
    CT_STATE = "ct state"
    CT_STATUS = "ct status"


INVALID, ESTABLISHED, RELATED, NEW, UNTRACKED = 1, 2, 4, 8, 64
STATE_DNAT, STATE_SNAT = 1 << 16, 1 << 17
"""Bits of CT_STATE; for iptables a translated connection is a state, too."""
STATUS_SNAT, STATUS_DNAT = 1 << 4, 1 << 5
"""Bits of CT_STATUS."""
BIT_NAMES = {
    PacketField.CT_STATE: {
        INVALID: "invalid",
        ESTABLISHED: "established",
        RELATED: "related",
        NEW: "new",
        UNTRACKED: "untracked",
        STATE_DNAT: "dnat",
        STATE_SNAT: "snat",
    },
    PacketField.CT_STATUS: {STATUS_SNAT: "snat", STATUS_DNAT: "dnat"},
}


class Match(msgspec.Struct, frozen=True):
    """One condition of a rule."""

    text: str
    field: PacketField | None = None
    """None: it is unknown which packets match."""
    ranges: tuple[tuple[bytes, bytes], ...] = ()
    """First and last value of every accepted range, in network order."""
    bits: int = 0
    """For fields made of bits: one of them must be set."""
    negated: bool = False


class Action(enum.Enum):
    """What a rule does with a packet that matches."""

    ACCEPT = "accept"
    DROP = "drop"
    REJECT = "reject"
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"
    DESTINATION_NAT = "dnat"
    SOURCE_NAT = "masquerade"
    UNTRACK = "notrack"
    PASS = ""
    """No effect on the route of the packet; the next rule follows."""
    UNKNOWN = "something unknown"


class FilterRule(msgspec.Struct, frozen=True):
    """One rule."""

    matches: tuple[Match, ...]
    action: Action
    target: str = ""
    """The chain of a jump or goto."""
    handle: int = 0
    """The kernel's number, where it has one."""
    comment: str = ""

    @property
    def conditions(self) -> str:
        return " ".join(match.text for match in self.matches if match.text)

    @property
    def text(self) -> str:
        comment = f"/* {self.comment} */" if self.comment else ""
        return " ".join(filter(None, (self.conditions, comment, self.action.value, self.target)))


class FilterChain(msgspec.Struct, frozen=True):
    """A chain; a base chain when it has a hook."""

    table: str
    """With its family: `inet firewall`, `legacy filter`."""
    name: str
    rules: tuple[FilterRule, ...] = ()
    kind: str = ""
    """`filter`, `nat` or `route`."""
    hook: str = ""
    """`prerouting`, `input`, `forward`, `output` or `postrouting`; empty for others."""
    priority: int = 0
    policy: Action = Action.ACCEPT
