"""Two iptables-save texts compared by what they do.

Ignored: counters, comment lines, canary chains, the order of chain declarations, empty built-in chains with policy
ACCEPT, `-m tcp|udp|sctp` (implied by `-p`), the order of states in `--ctstate`, blanks after `--nfacct-name`. The
order of rules is free in the chains where services stand side by side, with three exceptions: the node-port jump
comes last, rules with the same match and another verdict keep their order, and a node port's loopback counter rule
precedes its general rule.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field

CANARIES = frozenset(("KUBE-PROXY-CANARY", "KUBE-KUBELET-CANARY"))
UNORDERED = frozenset(("KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"))
LAST = "must be the last rule"


@dataclass
class Chain:
    """A chain's policy (`-` for ours) and its rules in normal form, without `-A CHAIN`."""

    policy: str = "-"
    rules: list[tuple[str, ...]] = field(default_factory=list)


def parsed(text: str) -> dict[str, Chain]:
    """`table chain` -> chain, canaries and empty accepting built-in chains left out."""
    chains: dict[str, Chain] = {}
    table = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#") or line == "COMMIT":
            continue
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":"):
            name, policy = line[1:].split()[:2]
            chains.setdefault(f"{table} {name}", Chain()).policy = policy
        else:
            words = _normal_words(re.sub(r"^\[\d+:\d+\] ", "", line))
            if words[0] != "-A":
                raise ValueError(f"not a rule: {line}")
            chains.setdefault(f"{table} {words[1]}", Chain()).rules.append(tuple(words[2:]))
    return {
        key: chain
        for key, chain in chains.items()
        if key.split()[1] not in CANARIES and (chain.rules or chain.policy != "ACCEPT")
    }


def _normal_words(line: str) -> list[str]:
    words = iter(shlex.split(line))
    normal: list[str] = []
    for word in words:
        if word == "-m":
            match = next(words)
            if match not in ("tcp", "udp", "sctp"):
                normal += [word, match]
        elif word == "--ctstate":
            normal += [word, ",".join(sorted(next(words).split(",")))]
        elif word in ("--nfacct-name", "--comment"):
            normal += [word, next(words).strip()]
        else:
            normal.append(word)
    return normal


def compared_form(key: str, chain: Chain) -> list[str]:
    """The rules as lines that are equal for chains that do the same."""
    lines = [shlex.join(rule) for rule in chain.rules]
    if key.split()[1] not in UNORDERED:
        return lines
    last = len(lines)
    while last and LAST in lines[last - 1]:
        last -= 1
    return sorted(_with_order_marks(lines[:last])) + sorted(lines[last:])


def _with_order_marks(lines: list[str]) -> list[str]:
    matches = [_match_of(line) for line in lines]
    total = Counter(matches)
    verdicts: dict[str, set[str]] = {}
    for line, match in zip(lines, matches, strict=True):
        verdicts.setdefault(match, set()).add(line.rpartition(" -j ")[2])
    seen: Counter[str] = Counter()
    general: set[str] = set()
    marked = []
    for line, match in zip(lines, matches, strict=True):
        seen[match] += 1
        target = line.split()[-1]
        if LAST in line:
            line = f"{line} <misplaced: other rules follow>"
        elif "--nfacct-name" not in line:
            general.add(target)
        elif target in general:
            line = f"{line} <misplaced: after the general rule>"
        if len(verdicts[match]) > 1:
            line = f"{line} <{seen[match]} of {total[match]} with this match>"
        marked.append(line)
    return marked


def _match_of(line: str) -> str:
    words = shlex.split(line)
    if "--comment" in words:
        at = words.index("--comment")
        words = words[: at - 2] + words[at + 2 :]
    return shlex.join(words[: words.index("-j")] if "-j" in words else words)


def differences(expected: str, actual: str) -> list[str]:
    """Lines about every difference: `-` expected only, `+` actual only; empty when the two do the same."""
    want, have = parsed(expected), parsed(actual)
    found: list[str] = []
    for key in sorted(want.keys() | have.keys()):
        if key not in have:
            found.append(f"{key}: chain is missing")
        elif key not in want:
            found.append(f"{key}: chain should not be there")
        elif want[key].policy != have[key].policy:
            found.append(f"{key}: policy {want[key].policy} expected, found {have[key].policy}")
        before, after = (compared_form(key, side[key]) if key in side else [] for side in (want, have))
        found += [f"{key}: {line}" for line in difflib.ndiff(before, after) if line[:2] in ("- ", "+ ")]
    return found
