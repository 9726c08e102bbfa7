"""Rules as iptables-save prints them: how they are spelled, and parsed into chains. Pure.

Rules are written in the form in which they are read back, so that verifying a node is a comparison of text. A chain is one block
of text: equal text is the normal case and cheap to recognise in tables with hundreds of thousands of lines. Only rules of chains
that differ are brought into the canonical form, in which spellings that vary between versions of iptables do not count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from pointsman.backends.netfilter import names
from pointsman.model.addresses import Family, address_text
from pointsman.model.node_context import LocalDetector, LocalMode

Chains = Mapping[str, bytes]
"""The chains of a table, each with its rules (`-A CHAIN ...`) as one text."""

_COMMENT_LIMIT = 255
"""The kernel stores 256 bytes, the last one zero."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_ESCAPED = re.compile(r"([\"'\\])")
_IMPLIED_MATCH = re.compile(r" -m (?:tcp|udp|sctp)(?= )")
_STATES = re.compile(r"--ctstate (\S+)")
_COUNTERS = re.compile(r"^\[\d+:\d+\] ")


# --- spelling -----------------------------------------------------------------------------------------------


def match_comment(text: str) -> str:
    """Return `-m comment --comment "..."`; no character can end the quotes or the line."""
    safe = _UNPRINTABLE.sub("?", text)[:_COMMENT_LIMIT]
    return '-m comment --comment "' + _ESCAPED.sub(r"\\\1", safe) + '"'


def format_host(address: bytes) -> str:
    """Return a single address the way it is printed, as `10.96.0.1/32`."""
    return f"{address_text(address)}/{len(address) * 8}"


def escape_interface(name: str) -> str:
    """Return an interface name that cannot break out of its place in the rule."""
    return re.sub(r"[^\x21-\x7e]|[\"'\\]", "?", name)


@functools.cache
def format_probability(choices: int, wanted: int = 1) -> str:
    """Return `wanted` in `choices`, after the kernel's 31-bit arithmetic on upstream's ten digits."""
    written = float(f"{wanted / choices:.10f}")
    return f"{round(written * 0x80000000) / 0x80000000:.11f}"


def format_recent_mask(family: Family) -> str:
    """Return the mask that `-m recent` prints for the whole source address."""
    return "255.255.255.255" if family is Family.IPV4 else ":".join(["ffff"] * 8)


def reject_with(family: Family) -> str:
    return f"REJECT --reject-with {'icmp' if family is Family.IPV4 else 'icmp6'}-port-unreachable"


RESET = "REJECT --reject-with tcp-reset"
NOT_FIRST = "! --tcp-flags FIN,SYN,RST,ACK SYN"
"""TCP packets other than the first one of a connection."""


def canonicalize(line: str) -> str:
    """Return a saved rule in one form, whatever the variant and version of iptables that printed it."""
    line = _COUNTERS.sub("", line.rstrip())
    line = line.replace("--nfacct-name  ", "--nfacct-name ")
    line = _STATES.sub(lambda match: "--ctstate " + ",".join(sorted(match[1].split(","))), line)
    return _IMPLIED_MATCH.sub("", line)


# --- rules of both modes ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def match_local(detector: LocalDetector) -> tuple[str, str]:
    """Return the match "comes from a local pod" as options for source and interface; one of them is empty."""
    if detector.mode is LocalMode.CIDR:
        return f"-s {detector.cidr} ", ""
    if detector.mode is LocalMode.NONE:
        return "", ""
    suffix = "+" if detector.mode is LocalMode.INTERFACE_PREFIX else ""
    return "", f"-i {escape_interface(detector.interface)}{suffix} "


def build_forward_rules(mark: str) -> Iterator[str]:
    """Yield the rules that accept forwarded traffic of Services."""
    yield f"-A {names.FORWARD} {match_comment('kubernetes forwarding rules')} -m mark --mark {mark}/{mark} -j ACCEPT"
    yield (
        f"-A {names.FORWARD} {match_comment('kubernetes forwarding conntrack rule')}"
        " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    )


def build_masquerade_rules(mark: str, *, random_fully: bool) -> Iterator[str]:
    """Yield the rules that mark packets, and masquerade those with the mark."""
    yield f"-A {names.MARK_MASQUERADE} -j MARK --set-xmark {mark}/{mark}"
    yield f"-A {names.POSTROUTING} -m mark ! --mark {mark}/{mark} -j RETURN"
    # The mark is taken off so that a packet that passes the stack again (overlay networks) is left alone.
    yield f"-A {names.POSTROUTING} -j MARK --set-xmark {mark}/0x0"
    target = "MASQUERADE --random-fully" if random_fully else "MASQUERADE"
    yield f"-A {names.POSTROUTING} {match_comment('kubernetes service traffic requiring SNAT')} -j {target}"


# --- saved tables -------------------------------------------------------------------------------------------


def parse_chains(text: bytes) -> dict[str, bytes]:
    """Return every declared chain of a saved table, with its rules."""
    end = text.find(b"\n-A ") + 1
    head = text[: end or len(text)].decode(errors="replace")
    found = {line[1:].partition(" ")[0]: b"" for line in head.split("\n") if line.startswith(":")}
    if not end:
        return found
    lines = text[end:].replace(b"--nfacct-name  ", b"--nfacct-name ").splitlines(keepends=True)
    first, prefix, chain = 0, b"COMMIT", ""
    for number, line in enumerate(lines):
        # Any other line belongs to the rule before it: comments of other programs may contain line breaks.
        if line.startswith(prefix) or not line.startswith((b"-A ", b"COMMIT")):
            continue
        if chain:
            found[chain] = found.get(chain, b"") + b"".join(lines[first:number])
        name = line.split(b" ", 2)[1] if line.startswith(b"-A ") else b""
        first, prefix, chain = number, b"-A " + name + b" ", name.decode(errors="replace")
    return found


def split_rules(block: bytes) -> list[str]:
    """Return the rules of a chain, one per line."""
    return [line for line in block.decode(errors="replace").split("\n") if line]


def canonicalize_rules(block: bytes) -> list[str]:
    """Return the rules of a chain in the form in which they are compared."""
    return [canonicalize(rule) for rule in split_rules(block)]


def format_deletion(
    table: str, chains: Collection[str], rules: Iterable[str] = (), kept: Collection[str] = ()
) -> str:
    """Return the input of iptables-restore that empties chains, removes saved rules of others, and deletes all but `kept`."""
    lines = [f"*{table}", *(f":{chain} - [0:0]" for chain in chains)]
    lines += [f"-D {rule.removeprefix('-A ')}" for rule in rules]
    lines += [f"-X {chain}" for chain in chains if chain not in kept]
    return "\n".join([*lines, "COMMIT\n"])


class Jump(msgspec.Struct, frozen=True, gc=False):
    """A rule in a built-in chain that leads to a chain of this proxy."""

    table: str
    source: str
    target: str
    comment: str = ""
    match: tuple[str, ...] = ()

    @property
    def rule(self) -> tuple[str, ...]:
        """The rule as arguments of the program."""
        comment = ("-m", "comment", "--comment", self.comment) if self.comment else ()
        return (*self.match, *comment, "-j", self.target)

    @property
    def line(self) -> str:
        """The rule as it is saved, without the `-A`."""
        comment = f"{match_comment(self.comment)} " if self.comment else ""
        match = " ".join(self.match) + " " if self.match else ""
        return f"{self.source} {match}{comment}-j {self.target}"

    def is_rule(self, rule: str) -> bool:
        """Return whether a saved rule, with its `-A`, is this jump, whatever the order of its matches."""
        return sorted(rule.split()) == sorted(f"-A {self.line}".split())

    def is_in(self, chains: Chains) -> bool:
        """Return whether the built-in chain holds this jump."""
        return any(map(self.is_rule, self._find_rules_to_target(chains)))

    def exists_in(self, chains: Chains, check: Callable[[Jump], bool]) -> bool:
        """Return whether the built-in chain holds this jump in any spelling; `check`, which runs iptables, decides about others."""
        return self.is_in(chains) or (any(self._find_rules_to_target(chains)) and check(self))

    def _find_rules_to_target(self, chains: Chains) -> list[str]:
        return [rule for rule in split_rules(chains.get(self.source, b"")) if f"-j {self.target}" in rule]
