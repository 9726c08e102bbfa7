"""The parts of a rule, spelled exactly as iptables-save prints them. Pure.

Rules are written in the form in which they are read back, so that verifying a node is a comparison of lines.
"""

from __future__ import annotations

import functools
import re

from pointsman.model.addresses import Family, address_text

_COMMENT_LIMIT = 255
"""The kernel stores 256 bytes, the last one zero."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_ESCAPED = re.compile(r"([\"'\\])")
_IMPLIED_MATCH = re.compile(r" -m (?:tcp|udp|sctp)(?= )")
_STATES = re.compile(r"--ctstate (\S+)")
_COUNTERS = re.compile(r"^\[\d+:\d+\] ")


def comment(text: str) -> str:
    """Return `-m comment --comment "..."`; no character can end the quotes or the line."""
    safe = _UNPRINTABLE.sub("?", text)[:_COMMENT_LIMIT]
    return '-m comment --comment "' + _ESCAPED.sub(r"\\\1", safe) + '"'


def host(address: bytes) -> str:
    """Return a single address the way it is printed, as `10.96.0.1/32`."""
    return f"{address_text(address)}/{len(address) * 8}"


def interface(name: str) -> str:
    """Return an interface name that cannot break out of its place in the rule."""
    return re.sub(r"[^\x21-\x7e]|[\"'\\]", "?", name)


@functools.cache
def probability(choices: int, wanted: int = 1) -> str:
    """Return `wanted` in `choices`, after the kernel's 31-bit arithmetic on upstream's ten digits."""
    written = float(f"{wanted / choices:.10f}")
    return f"{round(written * 0x80000000) / 0x80000000:.11f}"


def recent_mask(family: Family) -> str:
    """Return the mask that `-m recent` prints for the whole source address."""
    return "255.255.255.255" if family is Family.IPV4 else ":".join(["ffff"] * 8)


def reject(family: Family) -> str:
    return f"REJECT --reject-with {'icmp' if family is Family.IPV4 else 'icmp6'}-port-unreachable"


RESET = "REJECT --reject-with tcp-reset"
NOT_FIRST = "! --tcp-flags FIN,SYN,RST,ACK SYN"
"""TCP packets other than the first one of a connection."""


def canonical(line: str) -> str:
    """Return a saved rule in one form, whatever the variant and version of iptables that printed it."""
    line = _COUNTERS.sub("", line.rstrip())
    line = line.replace("--nfacct-name  ", "--nfacct-name ")
    line = _STATES.sub(lambda match: "--ctstate " + ",".join(sorted(match[1].split(","))), line)
    return _IMPLIED_MATCH.sub("", line)
