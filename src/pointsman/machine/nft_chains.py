"""Base chains of other programs, with their rules and the chains they jump to, read over netlink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from pointsman.backends.netfilter.names import is_proxy_chain
from pointsman.kernel import attributes as nla
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.nfnl import (
    FAMILY_KEYWORDS,
    NFPROTO,
    NftablesSocket,
    parse_answer,
    parse_comment,
    parse_value,
)
from pointsman.machine.nft_rules import SetElement, parse_rule, parse_verdict_value
from pointsman.machine.packet_filter import Action, FilterChain, FilterRule
from pointsman.model.addresses import Family

HOOKS = ("prerouting", "input", "forward", "output", "postrouting")

_MAX_CHAINS = 1000
_MAX_SET_SIZE = 256
_MAX_SET_BYTES = _MAX_SET_SIZE * 512
"""More than that many elements take, even with comments."""


class ChainReader:
    """Reads the chains of one IP family and of inet, of all programs."""

    def __init__(self, socket: NftablesSocket, family: Family) -> None:
        self._socket = socket
        self._family = family

    def list_base_chains(self, ignored_table: str) -> list[FilterChain]:
        """Return base chains without their rules, in the order in which packets pass those of one hook."""
        found = [chain for proto in self._protos for chain in self._read_base_chains(proto)]
        external = [chain for chain in found if chain.table.partition(" ")[2] != ignored_table]
        return sorted(external, key=lambda chain: (chain.hook, chain.priority))

    def read_chains(self, chains: Sequence[FilterChain]) -> dict[tuple[str, str], FilterChain]:
        """Return these chains and those they jump to, but for those of a service proxy, with rules, by table and name."""
        found: dict[tuple[str, str], FilterChain] = {}
        pending = list(chains)
        while pending and len(found) < _MAX_CHAINS:
            chain = pending.pop()
            if (chain.table, chain.name) in found:
                continue
            filled = msgspec.structs.replace(chain, rules=tuple(self.read_rules(chain.table, chain.name)))
            found[chain.table, chain.name] = filled
            targets = dict.fromkeys(rule.target for rule in filled.rules if rule.target)
            pending += (FilterChain(chain.table, one) for one in targets if not is_proxy_chain(one))
        return found

    def read_rules(self, table: str, chain: str) -> Iterator[FilterRule]:
        """Yield the rules of one chain; `table` includes its family, as in FilterChain."""
        keyword, _, name = table.partition(" ")
        proto = next(number for number, known in FAMILY_KEYWORDS.items() if known == keyword)
        body = nla.pack_text(nf.NFTA_RULE_TABLE, name) + nla.pack_text(nf.NFTA_RULE_CHAIN, chain)
        for answer in self._socket.dump(nf.NFT_MSG_GETRULE, proto, body, f"list rules of {table} {chain}"):
            found = parse_answer(answer)
            if nla.parse_text(found.get(nf.NFTA_RULE_CHAIN, b"")) == chain:
                yield from parse_rule(
                    found.get(nf.NFTA_RULE_EXPRESSIONS, b""),
                    self._family,
                    lambda wanted: self._read_elements(proto, name, wanted),
                    nla.parse_number(found.get(nf.NFTA_RULE_HANDLE)),
                    parse_comment(found.get(nf.NFTA_RULE_USERDATA, b"")),
                )

    @property
    def _protos(self) -> tuple[int, ...]:
        return (nf.NFPROTO_INET, NFPROTO[self._family])

    def _read_base_chains(self, proto: int) -> Iterator[FilterChain]:
        for answer in self._socket.dump(nf.NFT_MSG_GETCHAIN, proto, b"", "list chains"):
            found = parse_answer(answer)
            hook = nla.parse_attributes(found.get(nf.NFTA_CHAIN_HOOK, b""))
            number = int.from_bytes(hook.get(nf.NFTA_HOOK_HOOKNUM, b"\xff"), "big")
            if number >= len(HOOKS):
                continue
            policy = int.from_bytes(found.get(nf.NFTA_CHAIN_POLICY, b"\1"), "big")
            yield FilterChain(
                table=f"{FAMILY_KEYWORDS[proto]} {nla.parse_text(found.get(nf.NFTA_CHAIN_TABLE, b''))}",
                name=nla.parse_text(found[nf.NFTA_CHAIN_NAME]),
                kind=nla.parse_text(found.get(nf.NFTA_CHAIN_TYPE, b"")),
                hook=HOOKS[number],
                priority=int.from_bytes(hook.get(nf.NFTA_HOOK_PRIORITY, b""), "big", signed=True),
                policy=Action.DROP if policy == nf.NF_DROP else Action.ACCEPT,
            )

    def _read_elements(self, proto: int, table: str, name: str) -> list[SetElement] | None:
        """Return the elements of a set; None unless it is small and its keys are single values or ranges."""
        body = nla.pack_text(nf.NFTA_SET_TABLE, table) + nla.pack_text(nf.NFTA_SET_NAME, name)
        answer = self._socket.get(nf.NFT_MSG_GETSET, proto, body, f"read set {name}")
        if answer is None:
            return None
        flags = nla.parse_number(parse_answer(answer).get(nf.NFTA_SET_FLAGS))
        if flags & (nf.NFT_SET_CONCAT | nf.NFT_SET_TIMEOUT | nf.NFT_SET_EVAL):
            return None
        what = f"list elements of {name}"
        listed = self._socket.dump_elements(
            proto, body, what, dict, _parse_identity, max_bytes=_MAX_SET_BYTES
        )
        items = list(listed.values())
        if len(items) > _MAX_SET_SIZE:
            return None
        return (
            _parse_ranges(items) if flags & nf.NFT_SET_INTERVAL else [_parse_element(item) for item in items]
        )


def _parse_element(item: dict[int, bytes]) -> SetElement:
    key = _parse_key(item)
    action, target = parse_verdict_value(nla.parse_attributes(item.get(nf.NFTA_SET_ELEM_DATA, b"")))
    return SetElement(key, key, action, target)


def _parse_ranges(items: Sequence[dict[int, bytes]]) -> list[SetElement]:
    """Return the ranges of an interval set, which lists the start of each and, marked, the first value after it."""
    found: list[SetElement] = []
    ordered = sorted(items, key=lambda item: (_parse_key(item), not _is_end(item)))
    for number, item in enumerate(ordered):
        if _is_end(item):
            continue
        start = _parse_element(item)
        end = b"\xff" * len(start.low)
        if number + 1 < len(ordered):
            behind = int.from_bytes(_parse_key(ordered[number + 1]), "big")
            end = (behind - 1).to_bytes(len(start.low), "big")
        found.append(start._replace(high=end))
    return found


def _parse_identity(item: dict[int, bytes]) -> tuple[bytes | None, ...]:
    """Return what no two elements of a set share; the flags tell the end of a range from the start of the next."""
    return (
        item.get(nf.NFTA_SET_ELEM_KEY),
        item.get(nf.NFTA_SET_ELEM_KEY_END),
        item.get(nf.NFTA_SET_ELEM_FLAGS),
    )


def _is_end(item: dict[int, bytes]) -> bool:
    return bool(nla.parse_number(item.get(nf.NFTA_SET_ELEM_FLAGS)) & nf.NFT_SET_ELEM_INTERVAL_END)


def _parse_key(item: dict[int, bytes]) -> bytes:
    return parse_value(item.get(nf.NFTA_SET_ELEM_KEY, b""))
