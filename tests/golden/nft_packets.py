"""What happens to a packet: an interpreter for tables as `nft -j list` prints them.

Two rule sets of different shape are the same when every packet meets the same fate in both. Randomness is followed
into all its branches, so a fate comes with its exact probability.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

Json = Any
Fate = tuple[str, str, int, bool]
"""passed, drop or reject; destination address and port; whether the source was masqueraded."""


@dataclass(frozen=True)
class Packet:
    """The first packet of a connection."""

    source: str
    destination: str
    protocol: str
    port: int
    interface: str = ""
    from_node: bool = False
    mark: int = 0
    redirected: bool = False
    masqueraded: bool = False


@dataclass
class Table:
    """One family's table; `node` are the addresses for which the routing says local."""

    node: frozenset[str]
    sets: dict[str, list[Json]] = field(default_factory=dict)
    rules: dict[str, list[Json]] = field(default_factory=dict)
    hooks: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    exact: dict[str, dict[Json, Json]] = field(default_factory=dict)
    """Maps without patterns, by key, so that large ones are searched quickly."""

    def chains_at(self, hook: str) -> list[str]:
        return [name for _, name in sorted(self.hooks.get(hook, []))]


Branch = tuple[Fraction, str, Packet]
"""Probability, verdict (empty: go on) and the packet as changed."""


def table_from_json(text: str, family: str, node: frozenset[str]) -> Table:
    table = Table(node)
    for entry in json.loads(text)["nftables"]:
        ((kind, item),) = entry.items()
        if item.get("family") != family or item.get("table", item.get("name")) != "kube-proxy":
            continue
        if kind in ("set", "map"):
            table.sets[item["name"]] = item.get("elem", [])
        elif kind == "chain":
            table.rules.setdefault(item["name"], [])
            if "hook" in item:
                table.hooks.setdefault(item["hook"], []).append((item["prio"], item["name"]))
        elif kind == "rule":
            table.rules[item["chain"]].append(item["expr"])
    return table


def fates(table: Table, packet: Packet) -> dict[Fate, Fraction]:
    """Every fate the packet may meet, with its probability."""
    branches: list[Branch] = [(Fraction(1), "", packet)]
    branches = _through(table, branches, "output" if packet.from_node else "prerouting")
    if packet.from_node:
        branches = _through(table, branches, "postrouting")
        branches = _through(table, branches, "input", local_only=True)
    else:
        branches = _through(table, branches, "input", local_only=True)
        branches = _through(table, branches, "forward", local_only=False)
        branches = _through(table, branches, "postrouting", local_only=False)
    result: dict[Fate, Fraction] = {}
    for weight, verdict, end in branches:
        masqueraded = end.masqueraded and not verdict
        where = (end.destination, end.port) if not verdict else (packet.destination, packet.port)
        fate = (verdict or "passed", *where, masqueraded)
        result[fate] = result.get(fate, Fraction(0)) + weight
    return result


def _through(
    table: Table, branches: Sequence[Branch], hook: str, local_only: bool | None = None
) -> list[Branch]:
    for chain in table.chains_at(hook):
        after: list[Branch] = []
        for weight, verdict, packet in branches:
            is_local = packet.destination in table.node
            if verdict or (local_only is not None and local_only != is_local):
                after.append((weight, verdict, packet))
                continue
            for share, result, changed in _chain(table, chain, packet):
                final = result if result in ("drop", "reject") else ""
                after.append((weight * share, final, changed))
        branches = after
    return list(branches)


def _chain(table: Table, name: str, packet: Packet) -> Iterator[Branch]:
    pending: list[tuple[Fraction, Packet]] = [(Fraction(1), packet)]
    for rule in table.rules[name]:
        following: list[tuple[Fraction, Packet]] = []
        for weight, current in pending:
            for share, verdict, changed in _rule(table, rule, current):
                if verdict:
                    yield weight * share, verdict, changed
                else:
                    following.append((weight * share, changed))
        pending = following
    for weight, current in pending:
        yield weight, "", current


def _rule(table: Table, statements: Sequence[Json], packet: Packet) -> Iterator[Branch]:
    """The outcomes of one rule; an empty verdict means the next rule is looked at."""
    if not statements:
        yield Fraction(1), "", packet
        return
    head, rest = statements[0], statements[1:]
    ((kind, body),) = head.items()
    if kind == "match":
        yield from _match(table, body, rest, packet)
    elif kind == "mangle":
        yield from _rule(table, rest, replace(packet, mark=_value(table, body["value"], packet)))
    elif kind in ("set", "counter"):
        yield from _rule(table, rest, packet)
    elif kind == "vmap":
        for share, verdict in _looked_up(table, body, packet):
            if verdict is None:
                yield share, "", packet
            else:
                for inner, result, changed in _rule(table, [verdict], packet):
                    yield share * inner, result, changed
    elif kind == "dnat":
        yield from _dnat(table, body, packet)
    elif kind == "masquerade":
        yield Fraction(1), "accept", replace(packet, masqueraded=True)
    elif kind in ("drop", "reject", "accept"):
        yield Fraction(1), kind, packet
    elif kind == "jump":
        for share, verdict, changed in _chain(table, body["target"], packet):
            if verdict:
                yield share, verdict, changed
            else:
                for inner, result, end in _rule(table, rest, changed):
                    yield share * inner, result, end
    elif kind == "goto":
        for share, verdict, changed in _chain(table, body["target"], packet):
            yield share, verdict or "return", changed
    else:
        raise NotImplementedError(f"statement {head}")


def _match(table: Table, body: Json, rest: Sequence[Json], packet: Packet) -> Iterator[Branch]:
    if isinstance(body["left"], dict) and "numgen" in body["left"]:
        share = Fraction(1, body["left"]["numgen"]["mod"])
        for inner, verdict, changed in _rule(table, rest, packet):
            yield share * inner, verdict, changed
        if share < 1:
            yield 1 - share, "", packet
        return
    left, right = _value(table, body["left"], packet), body["right"]
    if body["op"] == "in":
        holds = right in left
    elif isinstance(right, str) and right.startswith("@"):
        holds = any(_fits(left, element) for element in table.sets[right[1:]])
    else:
        holds = _fits(left, right)
    if body["op"] == "!=":
        holds = not holds
    if holds:
        yield from _rule(table, rest, packet)
    else:
        yield Fraction(1), "", packet


def _dnat(table: Table, body: Json, packet: Packet) -> Iterator[Branch]:
    address = body["addr"]
    if isinstance(address, str):
        yield Fraction(1), "accept", _redirected(packet, address, body["port"])
        return
    for share, target in _looked_up(table, address["map"], packet):
        if target is None:
            yield share, "", packet
        else:
            yield share, "accept", _redirected(packet, *target["concat"])


def _redirected(packet: Packet, address: str, port: int) -> Packet:
    return replace(packet, destination=address, port=port, redirected=True)


def _looked_up(table: Table, body: Json, packet: Packet) -> Iterator[tuple[Fraction, Json]]:
    data = body["data"]
    pairs = table.sets[data[1:]] if isinstance(data, str) else data["set"]
    keys = list(_keys(table, body["key"], packet))
    for key in keys:
        if isinstance(data, str):
            value = _exact(table, data[1:]).get(tuple(key) if isinstance(key, list) else key)
        else:
            value = next((value for found, value in pairs if _fits(key, found)), None)
        yield Fraction(1, len(keys)), value


def _exact(table: Table, name: str) -> dict[Json, Json]:
    if name not in table.exact:
        table.exact[name] = {_exact_key(key): value for key, value in table.sets[name]}
    return table.exact[name]


def _exact_key(pattern: Json) -> Json:
    if not isinstance(pattern, Mapping):
        return pattern
    return _exact_key(pattern["elem"]["val"]) if "elem" in pattern else tuple(pattern["concat"])


def _keys(table: Table, expression: Json, packet: Packet) -> Iterator[Json]:
    """The key, or all keys where a part of it is random."""
    parts = expression.get("concat", [expression])
    values: list[list[Json]] = [[]]
    for part in parts:
        if "numgen" in part:
            values = [[*before, number] for before in values for number in range(part["numgen"]["mod"])]
        else:
            value = _value(table, part, packet)
            values = [[*before, value] for before in values]
    for value in values:
        yield value if "concat" in expression else value[0]


def _value(table: Table, expression: Json, packet: Packet) -> Json:
    if not isinstance(expression, dict):
        return expression
    ((kind, body),) = expression.items()
    if kind == "payload":
        return {"saddr": packet.source, "daddr": packet.destination, "dport": packet.port}[body["field"]]
    if kind == "meta":
        return {"l4proto": packet.protocol, "mark": packet.mark, "iifname": packet.interface}[body["key"]]
    if kind == "ct":
        return ("new",) if body["key"] == "state" else (("dnat",) if packet.redirected else ())
    if kind == "fib":
        address = packet.source if "saddr" in body["flags"] else packet.destination
        return "local" if address in table.node else "unicast"
    if kind == "concat":
        return [_value(table, part, packet) for part in body]
    left, right = (_value(table, operand, packet) for operand in body)
    return {"&": left & right, "|": left | right, "^": left ^ right}[kind]


def _fits(value: Json, pattern: Json) -> bool:
    if isinstance(pattern, Mapping):
        ((kind, body),) = pattern.items()
        if kind == "elem":
            return _fits(value, body["val"])
        if kind == "set":
            return any(_fits(value, member) for member in body)
        if kind == "concat":
            return all(_fits(one, other) for one, other in zip(value, body, strict=True))
        if kind == "prefix":
            return _number(value) in ipaddress.ip_network(f"{body['addr']}/{body['len']}")
        if kind == "range":
            return bool(_number(body[0]) <= _number(value) <= _number(body[1]))
        raise NotImplementedError(f"pattern {pattern}")
    if isinstance(pattern, str) and pattern.endswith("*"):
        return str(value).startswith(pattern[:-1])
    return bool(value == pattern)


def _number(text: str) -> Any:
    return ipaddress.ip_address(text)
