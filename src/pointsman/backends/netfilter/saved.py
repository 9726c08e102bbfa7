"""What iptables-save printed, reduced to what a sync needs to know or parsed in full for verification."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

_BUILT_IN = (b"INPUT", b"OUTPUT", b"FORWARD", b"PREROUTING", b"POSTROUTING")


class TableOutline(msgspec.Struct, frozen=True):
    """The chains of a table, and the rules by which built-in chains lead to Kubernetes ones."""

    chains: frozenset[str]
    jumps: tuple[str, ...]
    """Without the leading `-A`."""

    def jumps_between(self, source: str, target: str) -> list[str]:
        return [rule for rule in self.jumps if rule.startswith(f"{source} ") and f"-j {target}" in rule]


def outline(text: bytes) -> TableOutline:
    """A quick look: large tables have hundreds of thousands of lines, nearly all of no interest."""
    rules = (rule for chain in _BUILT_IN for rule in _rules_of(text, chain))
    return TableOutline(frozenset(_chains(text)), tuple(rule for rule in rules if "-j KUBE-" in rule))


def _chains(text: bytes) -> list[str]:
    """Declared chains; declarations stand before all rules."""
    end = text.find(b"\n-A ")
    head = text[: end if end >= 0 else len(text)].decode(errors="replace")
    return [line[1:].partition(" ")[0] for line in head.split("\n") if line.startswith(":")]


def _rules_of(text: bytes, chain: bytes) -> Iterator[str]:
    start = b"\n-A " + chain + b" "
    at = text.find(start)
    while at >= 0:
        end = text.find(b"\n", at + 1)
        yield text[at + 4 : end if end >= 0 else len(text)].decode(errors="replace").rstrip()
        at = text.find(start, at + 1)


def blocks(text: bytes) -> dict[str, bytes]:
    """Every declared chain with its rules as one text, the way rules are written here; cheap for large tables."""
    found: dict[str, bytes] = dict.fromkeys(_chains(text), b"")
    at = text.find(b"\n-A ") + 1
    if not at:
        return found
    rules = text[at:].replace(b"--nfacct-name  ", b"--nfacct-name ").splitlines(keepends=True)
    first, prefix, chain = 0, b"", ""
    for number, line in enumerate([*rules, b""]):
        if prefix and line.startswith(prefix):
            continue
        if chain:
            found[chain] += b"".join(rules[first:number])
        if not line.startswith(b"-A "):
            break
        name = line.split(b" ", 2)[1]
        first, prefix, chain = number, b"-A " + name + b" ", name.decode()
    return found


def rules_by_chain(text: bytes) -> dict[str, list[str]]:
    """Every chain of a table with its rules as printed, `-A CHAIN` included."""
    found: dict[str, list[str]] = {chain: [] for chain in _chains(text)}
    for line in text.decode(errors="replace").split("\n"):
        if line.startswith("-A "):
            found.setdefault(line.split(" ", 2)[1], []).append(line)
    return found
