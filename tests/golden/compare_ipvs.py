"""Dumps of ipvs mode compared by what they mean: ipvsadm-save, ipset save, iptables-save, addresses of kube-ipvs0.

Ignored: the order of servers, sets and entries; ipset's hashsize, bucketsize and initval; link-local addresses; in
KUBE-IPVS-OUT-FILTER the order of rules (it counts in every other chain of this mode). A recording without
ip6tables-save was made without IPv6; then everything IPv6 is left out of the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.golden import compare_iptables

UNORDERED = frozenset(("KUBE-IPVS-OUT-FILTER",))
_TUNING = frozenset(("hashsize", "bucketsize", "initval"))


def virtual_servers(text: str, *, ipv4_only: bool = False) -> dict[str, list[str]]:
    """Service -> its options, then its real servers sorted."""
    options: dict[str, str] = {}
    reals: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if not words or (ipv4_only and "[" in words[2]):
            continue
        service = " ".join(words[1:3])
        if words[0] == "-A":
            options[service] = " ".join(words[3:])
        elif words[0] == "-a":
            reals.setdefault(service, []).append(" ".join(words[3:]))
        else:
            raise ValueError(f"not a line of ipvsadm-save: {line}")
    return {
        key: [options.get(key, "MISSING"), *sorted(reals.get(key, ()))]
        for key in options.keys() | reals.keys()
    }


def ip_sets(text: str, *, ipv4_only: bool = False) -> dict[str, list[str]]:
    """Set -> its type and options, then its entries sorted."""
    options: dict[str, str] = {}
    entries: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if not words or (ipv4_only and words[1].startswith("KUBE-6-")):
            continue
        if words[0] == "create":
            options[words[1]] = " ".join(_without_tuning(words[2:]))
        elif words[0] == "add":
            entries.setdefault(words[1], []).append(" ".join(words[2:]))
        else:
            raise ValueError(f"not a line of ipset save: {line}")
    return {
        key: [options.get(key, "MISSING"), *sorted(entries.get(key, ()))]
        for key in options.keys() | entries.keys()
    }


def _without_tuning(words: list[str]) -> list[str]:
    skip = {i for i, word in enumerate(words) if word in _TUNING}
    return [word for i, word in enumerate(words) if i not in skip and i - 1 not in skip]


def addresses(text: str, *, ipv4_only: bool = False) -> dict[str, list[str]]:
    """The output of `ip -j addr show` reduced to addresses with prefix length and scope."""
    found = [
        f"{info['local']}/{info['prefixlen']} {info['scope']}"
        for link in json.loads(text or "[]")
        for info in link.get("addr_info", ())
        if not info["local"].startswith("fe80:") and not (ipv4_only and ":" in info["local"])
    ]
    return {"kube-ipvs0": sorted(found)}


def rules(text: str) -> dict[str, list[str]]:
    """Table and chain -> policy and rules."""
    found: dict[str, list[str]] = {}
    for key, chain in compare_iptables.parsed(text).items():
        lines = [" ".join(rule) for rule in chain.rules]
        found[key] = [f"policy {chain.policy}", *(sorted(lines) if key.split()[1] in UNORDERED else lines)]
    return found


def differences(what: str, expected: Mapping[str, list[str]], actual: Mapping[str, list[str]]) -> list[str]:
    """Lines about every difference: `-` expected only, `+` actual only; empty when the two mean the same."""
    found: list[str] = []
    for key in sorted(expected.keys() | actual.keys()):
        want, have = expected.get(key), actual.get(key)
        if want is None or have is None:
            found.append(f"{what} {key}: {'should not be there' if want is None else 'is missing'}")
        elif want != have:
            found += [f"{what} {key}: - {line}" for line in want if line not in have]
            found += [f"{what} {key}: + {line}" for line in have if line not in want]
            if sorted(want) == sorted(have):
                found.append(f"{what} {key}: the same lines in another order")
            elif set(want) == set(have):
                found.append(f"{what} {key}: the same lines, not equally often")
    return found
