"""Chains of legacy iptables, which nf_tables does not list, from the output of its save program. Does no I/O."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from pointsman.backends.netfilter.names import is_proxy_chain
from pointsman.machine import packet_filter as pf
from pointsman.machine.nft_matches import NAME_LENGTH
from pointsman.machine.nft_rules import TARGETS, build_unreadable_rule
from pointsman.machine.packet_filter import Action, FilterChain, FilterRule, Match, PacketField
from pointsman.model.addresses import cidr_from_text, port_from_text
from pointsman.model.service import Protocol

_PRIORITIES = {
    "raw": {"prerouting": -300, "output": -300},
    "mangle": dict.fromkeys(("prerouting", "input", "forward", "output", "postrouting"), -150),
    "nat": {"prerouting": -100, "output": -100, "input": 100, "postrouting": 100},
    "filter": dict.fromkeys(("input", "forward", "output"), 0),
    "security": dict.fromkeys(("input", "forward", "output"), 50),
}
_ADDRESSES = {"-s": PacketField.SOURCE, "-d": PacketField.DESTINATION}
_INTERFACES = {"-i": PacketField.IN_INTERFACE, "-o": PacketField.OUT_INTERFACE}
_PORTS = {"--sport": PacketField.SOURCE_PORT, "--dport": PacketField.DESTINATION_PORT}
_VERDICTS = {"ACCEPT": Action.ACCEPT, "DROP": Action.DROP, "RETURN": Action.RETURN}
_STATES = {
    "INVALID": pf.INVALID,
    "ESTABLISHED": pf.ESTABLISHED,
    "RELATED": pf.RELATED,
    "NEW": pf.NEW,
    "UNTRACKED": pf.UNTRACKED,
    "DNAT": pf.STATE_DNAT,
    "SNAT": pf.STATE_SNAT,
}


def parse_legacy_chains(text: str) -> dict[tuple[str, str], FilterChain]:
    """Return the chains in the output of iptables-save that are not a service proxy's, by table (`legacy nat`) and name.

    Those are not parsed: there may be hundreds of thousands of rules.
    """
    found: dict[tuple[str, str], FilterChain] = {}
    table = ""
    policies: dict[str, Action] = {}
    rules: dict[str, list[FilterRule]] = {}
    for line in text.splitlines():
        if line.startswith("*"):
            table, policies, rules = line[1:].strip(), {}, {}
        elif line.startswith(":"):
            name, policy_name = line[1:].split()[:2]
            policies[name] = Action.DROP if policy_name == "DROP" else Action.ACCEPT
        elif line.startswith("-A "):
            chain = line.split(" ", 2)[1]
            if not is_proxy_chain(chain):
                rules.setdefault(chain, []).append(_parse_rule(line, policies))
        elif line == "COMMIT":
            for name, policy in policies.items():
                if is_proxy_chain(name):
                    continue
                priority = _PRIORITIES.get(table, {}).get(name.lower())
                built_in = priority is not None and name.isupper()
                found[f"legacy {table}", name] = FilterChain(
                    f"legacy {table}",
                    name,
                    tuple(rules.get(name, ())),
                    kind="nat" if table == "nat" else "filter",
                    hook=name.lower() if built_in else "",
                    priority=priority or 0,
                    policy=policy,
                )
    return found


def _parse_rule(line: str, chains: dict[str, Action]) -> FilterRule:
    """Parse a rule; a line break in a comment is printed as it is, so the rest of such a rule is on another line."""
    try:
        return _parse_fields(shlex.split(line)[2:], chains)
    except ValueError:
        return build_unreadable_rule()


def _parse_fields(fields: Sequence[str], chains: dict[str, Action]) -> FilterRule:
    matches: list[Match] = []
    action, target = Action.PASS, ""
    for option, negated, values in _parse_options(fields):
        if option in ("-j", "-g"):
            if values[0] in chains and values[0] not in _VERDICTS:
                action, target = Action.JUMP if option == "-j" else Action.GOTO, values[0]
            elif values[0] == "CT":
                action = Action.UNTRACK if "--notrack" in fields else Action.PASS
            else:
                action = _VERDICTS.get(values[0]) or TARGETS.get(values[0], Action.PASS)
            break
        matches += _parse_matches(option, values, negated=negated)
    return FilterRule(tuple(matches), action, target)


def _parse_options(fields: Sequence[str]) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield each option, whether it is negated, and its values."""
    position, negated = 0, False
    while position < len(fields):
        if fields[position] == "!":
            negated, position = True, position + 1
            continue
        end = position + (2 if fields[position] == "--comment" else 1)  # it may begin as an option does
        while end < len(fields) and not fields[end].startswith("-") and fields[end] != "!":
            end += 1
        yield fields[position], negated, list(fields[position + 1 : end]) or [""]
        position, negated = end, False


def _parse_matches(option: str, values: Sequence[str], *, negated: bool) -> tuple[Match, ...]:
    if option in ("-m", "--comment"):
        return ()
    text = f"{'! ' if negated else ''}{option} {' '.join(values)}".strip()
    found = _parse_range(option, values[0])
    if found is not None:
        field, low, high = found
        return (Match(text, field, ((low, high),), negated=negated),)
    states = values[0].split(",")
    if option in ("--ctstate", "--state") and all(state in _STATES for state in states):
        bits = sum(_STATES[state] for state in states)
        return (Match(text, PacketField.CT_STATE, bits=bits, negated=negated),)
    return (Match(text),)


def _parse_range(option: str, value: str) -> tuple[PacketField, bytes, bytes] | None:
    """Return the field that an option compares, and the first and last value that match; None where it is unknown."""
    if option in _ADDRESSES:
        cidr = cidr_from_text(value if "/" in value else f"{value}/{128 if ':' in value else 32}")
        if cidr is not None:
            return _ADDRESSES[option], cidr.network, cidr.last.to_bytes(len(cidr.network), "big")
    elif option in _INTERFACES:
        name = value.removesuffix("+").encode()
        last = name.ljust(NAME_LENGTH, b"\xff" if value.endswith("+") else b"\0")
        return _INTERFACES[option], name.ljust(NAME_LENGTH, b"\0"), last
    elif option in _PORTS:
        first, _, last_text = value.partition(":")
        lowest, highest = port_from_text(first), port_from_text(last_text or first)
        if lowest is not None and highest is not None:
            return _PORTS[option], lowest.to_bytes(2, "big"), highest.to_bytes(2, "big")
    elif option == "-p" and value.upper() in Protocol.__members__:
        number = bytes((Protocol[value.upper()].value,))
        return PacketField.PROTOCOL, number, number
    return None
