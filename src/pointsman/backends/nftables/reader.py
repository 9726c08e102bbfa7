"""The table in the kernel with its chains, rules, sets and elements, read over netlink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pointsman.backends.nftables import encode
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.expressions import parse_packets
from pointsman.backends.nftables.fields import FamilyTraits
from pointsman.backends.nftables.schema import TABLE, Data, FlowTimeout, Hook, SetShape, SetSpec
from pointsman.errors import NotSupported
from pointsman.kernel import attributes as nla
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.netlink import Answer
from pointsman.kernel.nfnl import NftablesSocket, parse_answer, parse_comment, parse_value

_KUBE_PROXY_COMMENT = "rules for kube-proxy"


class KernelElement(msgspec.Struct, frozen=True, gc=False):
    """One element as the kernel stores it."""

    key: bytes
    """Empty for a catch-all, which matches when no other element does."""
    key_end: bytes = b""
    """Interval sets: the last key of the range."""
    data: bytes = b""
    """Endpoint maps: address and port."""
    verdict: str = ""
    """Verdict maps: in nft's syntax."""
    packets: int = 0


class KernelSet(NamedTuple):
    """A set or map, without its elements."""

    shape: SetShape
    elements: int | None
    """How many; None where the kernel does not report it (before 6.16)."""


class KernelChain(NamedTuple):
    """A chain, without its rules."""

    uses: int
    """Rules inside plus references from rules and verdict maps."""
    hook: Hook | None


class KernelTimeout(NamedTuple):
    """A policy of connection tracking."""

    protocol: int
    policy: dict[int, bytes]
    """Seconds of every state, by their numbers."""

    def has_policy_of(self, timeout: FlowTimeout) -> bool:
        """Return whether it sets the states of this timeout; the others have the kernel's values."""
        wanted = encode.encode_timeout_policy(timeout)
        return self.protocol == timeout.protocol.value and wanted.items() <= self.policy.items()


class TableHead(NamedTuple):
    """The table itself."""

    handle: int
    comment: str
    flags: int
    owner: int
    """Netlink port of the only socket that may change it; 0 without such an owner."""

    def describe_owner(self) -> str:
        return f"owned by another process (netlink port {self.owner}, usually its process id)"


class KernelTable(msgspec.Struct, frozen=True):
    """The table with its chains and sets."""

    head: TableHead
    chains: dict[str, KernelChain]
    sets: dict[str, KernelSet]
    """Without those that are part of a rule."""
    timeouts: dict[str, KernelTimeout]

    @property
    def is_made_by_kube_proxy(self) -> bool:
        """Made or taken over by kube-proxy, which keeps the comment and adds chains with names of Services."""
        return self.head.comment == _KUBE_PROXY_COMMENT or any("/" in name for name in self.chains)


class Reader:
    """Reads one family's table."""

    def __init__(self, socket: NftablesSocket, traits: FamilyTraits) -> None:
        self._socket = socket
        self._traits = traits

    def read_head(self) -> TableHead | None:
        """Return the table without its contents; None when there is none."""
        answer = self._socket.get(
            nf.NFT_MSG_GETTABLE, self._traits.nfproto, encode.TABLE_NAME, f"read table {TABLE}"
        )
        if answer is None:
            return None
        found = parse_answer(answer)
        return TableHead(
            nla.parse_number(found.get(nf.NFTA_TABLE_HANDLE)),
            parse_comment(found.get(nf.NFTA_TABLE_USERDATA, b"")),
            nla.parse_number(found.get(nf.NFTA_TABLE_FLAGS)),
            nla.parse_number(found.get(nf.NFTA_TABLE_OWNER)),
        )

    def read_table(self) -> KernelTable | None:
        """Return the table with chains and sets; None when there is none."""
        head = self.read_head()
        if head is None:
            return None
        return KernelTable(head, self._read_chains(), self._read_sets(), self._read_timeouts())

    def _dump(self, kind: int, body: bytes, what: str) -> list[dict[int, bytes]]:
        answers = self._socket.dump(kind, self._traits.nfproto, body, what)
        found = (parse_answer(answer) for answer in answers)
        return [entry for entry in found if nla.parse_text(entry.get(nf.NFTA_TABLE_NAME, b"")) == TABLE]

    def _read_chains(self) -> dict[str, KernelChain]:
        return parse_chains(self._dump(nf.NFT_MSG_GETCHAIN, encode.TABLE_NAME, "list chains"))

    def _read_sets(self) -> dict[str, KernelSet]:
        return parse_sets(self._dump(nf.NFT_MSG_GETSET, encode.TABLE_NAME, "list sets"))

    def _read_timeouts(self) -> dict[str, KernelTimeout]:
        body = encode.TABLE_NAME + nla.pack_u32be(nf.NFTA_OBJ_TYPE, nf.NFT_OBJECT_CT_TIMEOUT)
        return dict(map(_parse_timeout, self._dump(nf.NFT_MSG_GETOBJ, body, "list ct timeouts")))

    def read_rules(self) -> dict[str, list[bytes]]:
        """Return the encoded expressions of every rule, per chain, in order."""
        rules: dict[str, list[bytes]] = {}
        for found in self._dump(nf.NFT_MSG_GETRULE, encode.TABLE_NAME, "list rules"):
            name = nla.parse_text(found[nf.NFTA_RULE_CHAIN])
            rules.setdefault(name, []).append(found.get(nf.NFTA_RULE_EXPRESSIONS, b""))
        return rules

    def read_elements(self, spec: SetSpec) -> dict[bytes, KernelElement]:
        """Return every element by key."""
        return self._socket.dump_elements(
            self._traits.nfproto,
            encode.encode_element_list(spec.name),
            f"list elements of {spec.name}",
            lambda parts: _parse_element(parts, spec),
            lambda element: element.key,
        )

    def read_catch_alls(self, specs: Sequence[SetSpec]) -> dict[str, KernelElement]:
        """Return the elements that match when no other does, by set; no count includes them."""
        try:
            found = self._look_up([(spec, b"") for spec in specs])
        except NotSupported:  # before Linux 5.13 there are none
            return {}
        return {spec.name: held for spec, held in zip(specs, found, strict=True) if held is not None}

    def _look_up(self, wanted: Sequence[tuple[SetSpec, bytes]]) -> list[KernelElement | None]:
        """Return the elements under these keys (empty: the catch-all), None for those that do not exist."""
        bodies = [
            encode.encode_element_list(spec.name, list(encode.encode_keys([(key, b"")])))
            for spec, key in wanted
        ]
        answers = self._socket.get_each(
            nf.NFT_MSG_GETSETELEM, self._traits.nfproto, bodies, "look up elements"
        )
        return [
            next(_parse_elements(answer, spec), None) if answer is not None else None
            for answer, (spec, _) in zip(answers, wanted, strict=True)
        ]


class NarrowReader(Reader):
    """Reads only objects that some contents name, so that one Service among ten thousand costs no more than among ten."""

    def __init__(self, socket: NftablesSocket, traits: FamilyTraits, wanted: Contents) -> None:
        super().__init__(socket, traits)
        self._chain_names = [chain.name for chain in wanted.list_chains()]
        self._set_names = [spec.name for spec in wanted.list_sets()]
        self._timeout_names = {timeout.name for timeout in wanted.timeouts}
        self._keys = wanted.list_keys()

    def _read_chains(self) -> dict[str, KernelChain]:
        return parse_chains(self._get_named(nf.NFT_MSG_GETCHAIN, nf.NFTA_CHAIN_NAME, self._chain_names))

    def _read_sets(self) -> dict[str, KernelSet]:
        return parse_sets(self._get_named(nf.NFT_MSG_GETSET, nf.NFTA_SET_NAME, self._set_names))

    def _read_timeouts(self) -> dict[str, KernelTimeout]:
        if not self._timeout_names:
            return {}
        return {name: held for name, held in super()._read_timeouts().items() if name in self._timeout_names}

    def read_rules(self) -> dict[str, list[bytes]]:
        return {name: self._read_rules_of(name) for name in self._chain_names}

    def _read_rules_of(self, chain: str) -> list[bytes]:
        body = encode.TABLE_NAME + nla.pack_text(nf.NFTA_RULE_CHAIN, chain)
        listed = self._dump(nf.NFT_MSG_GETRULE, body, f"list rules of {chain}")
        return [found.get(nf.NFTA_RULE_EXPRESSIONS, b"") for found in listed]

    def read_elements(self, spec: SetSpec) -> dict[bytes, KernelElement]:
        keys = self._keys[spec.name]
        try:
            found = self._look_up([(spec, key) for key in keys])
        except NotSupported:  # this kernel cannot look such keys up
            held = super().read_elements(spec)
            found = [held.get(key) for key in keys]
        by_key = {element.key: element for element in found if element is not None}
        return by_key | {held.key: held for held in self.read_catch_alls([spec]).values()}

    def _get_named(self, kind: int, attribute: int, names: Iterable[str]) -> Iterator[dict[int, bytes]]:
        bodies = [encode.TABLE_NAME + nla.pack_text(attribute, name) for name in names]
        for answer in self._socket.get_each(kind, self._traits.nfproto, bodies, "look up chains and sets"):
            if answer is not None:
                yield parse_answer(answer)


def parse_chains(listed: Iterable[Mapping[int, bytes]]) -> dict[str, KernelChain]:
    """Return chains by name, from the attributes of their messages; `parse_sets` does the same for sets."""
    return {
        nla.parse_text(found[nf.NFTA_CHAIN_NAME]): KernelChain(
            nla.parse_number(found.get(nf.NFTA_CHAIN_USE)), _parse_hook(found)
        )
        for found in listed
    }


def parse_sets(listed: Iterable[Mapping[int, bytes]]) -> dict[str, KernelSet]:
    return {
        nla.parse_text(found[nf.NFTA_SET_NAME]): KernelSet(
            _parse_shape(found),
            nla.parse_number(found[nf.NFTA_SET_COUNT]) if nf.NFTA_SET_COUNT in found else None,
        )
        for found in listed
        if not nla.parse_number(found.get(nf.NFTA_SET_FLAGS)) & nf.NFT_SET_ANONYMOUS
    }


def _parse_timeout(found: Mapping[int, bytes]) -> tuple[str, KernelTimeout]:
    data = nla.parse_attributes(found.get(nf.NFTA_OBJ_DATA, b""))
    policy = nla.parse_attributes(data.get(nf.NFTA_CT_TIMEOUT_DATA, b""))
    protocol = nla.parse_number(data.get(nf.NFTA_CT_TIMEOUT_L4PROTO))
    return nla.parse_text(found[nf.NFTA_OBJ_NAME]), KernelTimeout(protocol, policy)


def _parse_elements(answer: Answer, spec: SetSpec) -> Iterator[KernelElement]:
    found = parse_answer(answer)
    for _, item in nla.iter_attributes(found.get(nf.NFTA_SET_ELEM_LIST_ELEMENTS, b"")):
        yield _parse_element(nla.parse_attributes(item), spec)


def _parse_element(parts: dict[int, bytes], spec: SetSpec) -> KernelElement:
    data, verdict = b"", ""
    held = parts.get(nf.NFTA_SET_ELEM_DATA)
    if held is not None and spec.data is Data.VERDICT:
        verdict = _parse_verdict(
            nla.parse_attributes(nla.parse_attributes(held).get(nf.NFTA_DATA_VERDICT, b""))
        )
    elif held is not None:
        data = parse_value(held)
    end = parts.get(nf.NFTA_SET_ELEM_KEY_END)
    return KernelElement(
        parse_value(parts.get(nf.NFTA_SET_ELEM_KEY, b"")),
        parse_value(end) if end is not None else b"",
        data,
        verdict,
        parse_packets(parts.get(nf.NFTA_SET_ELEM_EXPR)),
    )


_VERDICTS = {
    nf.NF_DROP: "drop",
    nf.NF_ACCEPT: "accept",
    nf.NFT_JUMP & 0xFFFFFFFF: "jump",
    nf.NFT_GOTO & 0xFFFFFFFF: "goto",
}


def _parse_verdict(parts: dict[int, bytes]) -> str:
    code = nla.parse_number(parts.get(nf.NFTA_VERDICT_CODE))
    verb = _VERDICTS.get(code, f"verdict {code}")
    chain = parts.get(nf.NFTA_VERDICT_CHAIN)
    return verb if chain is None else f"{verb} {nla.parse_text(chain)}"


def _parse_hook(found: Mapping[int, bytes]) -> Hook | None:
    if nf.NFTA_CHAIN_HOOK not in found:
        return None
    hook = nla.parse_attributes(found[nf.NFTA_CHAIN_HOOK])
    return Hook(
        nla.parse_text(found.get(nf.NFTA_CHAIN_TYPE, b"")),
        nla.parse_number(hook.get(nf.NFTA_HOOK_HOOKNUM)),
        int.from_bytes(hook.get(nf.NFTA_HOOK_PRIORITY, b""), "big", signed=True),
        nla.parse_number(found.get(nf.NFTA_CHAIN_POLICY)),
    )


def _parse_shape(found: Mapping[int, bytes]) -> SetShape:
    data_type = nla.parse_number(found.get(nf.NFTA_SET_DATA_TYPE))
    # The length of a verdict is the kernel's own affair: it ignores what is sent and reports what it needs.
    data_length = 0 if data_type == nf.NFT_DATA_VERDICT else nla.parse_number(found.get(nf.NFTA_SET_DATA_LEN))
    return SetShape(
        nla.parse_number(found.get(nf.NFTA_SET_FLAGS)),
        nla.parse_number(found.get(nf.NFTA_SET_KEY_TYPE)),
        nla.parse_number(found.get(nf.NFTA_SET_KEY_LEN)),
        data_type,
        data_length,
    )
