"""What iptables-save printed, reduced to what a sync needs to know or parsed in full for verification."""

from __future__ import annotations

import re

import msgspec

_CHAIN = re.compile(rb"^:(\S+) (\S+)", re.MULTILINE)
_BUILT_IN_JUMP = re.compile(
    rb"^-A ((?:INPUT|OUTPUT|FORWARD|PREROUTING|POSTROUTING) .*-j (KUBE-\S+).*)$", re.MULTILINE
)


class TableOutline(msgspec.Struct, frozen=True):
    """The chains of a table, and the rules by which built-in chains lead to Kubernetes ones."""

    chains: frozenset[str]
    jumps: tuple[str, ...]
    """Without the leading `-A`."""

    def jumps_between(self, source: str, target: str) -> list[str]:
        return [rule for rule in self.jumps if rule.startswith(f"{source} ") and f"-j {target}" in rule]


def outline(text: bytes) -> TableOutline:
    """A quick look: large tables have hundreds of thousands of lines, nearly all of no interest."""
    return TableOutline(
        frozenset(match[0].decode() for match in _CHAIN.findall(text)),
        tuple(match[0].decode(errors="replace").rstrip() for match in _BUILT_IN_JUMP.findall(text)),
    )


def rules_by_chain(text: bytes) -> dict[str, list[str]]:
    """Every chain of a table with its rules as printed, `-A CHAIN` included."""
    found: dict[str, list[str]] = {match[0].decode(): [] for match in _CHAIN.findall(text)}
    for line in text.decode(errors="replace").splitlines():
        if line.startswith("-A "):
            found.setdefault(line.split(" ", 2)[1], []).append(line)
    return found
