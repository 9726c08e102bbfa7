"""Comparison of the kernel with the desired state: drift checks over netlink, and the full comparison. Reads, never writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping

from pointsman.backends.contract import PRESENT, Difference, compile_each
from pointsman.backends.ipvs.compile import ADDRESS, SERVER, Compiler, Schedulers
from pointsman.backends.ipvs.rules import CHAINS, JUMPS, RuleSet, build_desired_rules
from pointsman.backends.ipvs.sockets import KernelReader
from pointsman.backends.ipvs.steps import KernelState
from pointsman.backends.ledger import Ledger
from pointsman.backends.netfilter.rule_text import canonicalize, canonicalize_rules, parse_chains
from pointsman.backends.netfilter.runners import diff_dormant, diff_jumps, diff_rules
from pointsman.kernel import ipvs
from pointsman.kernel.ipvs_objects import (
    IPVS_DEVICE,
    PERSISTENT,
    RealOf,
    SetHeader,
    VirtualKey,
    VirtualServer,
)
from pointsman.kernel.nft_ruleset import NftRuleset
from pointsman.model.addresses import address_text
from pointsman.model.node_context import NodeContext
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

Excluded = Callable[[VirtualKey], bool]
"""Returns whether a virtual server belongs to another program."""


class DriftCheck:
    """Compares names, settings and counts with what the backend last knew; repeated checks are cheap.

    Of the virtual servers it keeps a digest of the listing that was last found right. Changes of addresses are reported by
    the kernel, so they are listed again only after one.
    """

    def __init__(self) -> None:
        self._digest: int | None = None
        self._addresses_match = False

    def forget_servers(self) -> None:
        """Forget the digest; to be called when the proxy changed virtual servers itself."""
        self._digest = None

    def find(self, state: KernelState, reader: KernelReader, excluded: Excluded) -> Difference | None:
        """Return the first difference; raises KernelError."""
        return (
            self._find_server(state, reader, excluded)
            or self._find_address(state, reader)
            or next(_diff_sets(state, reader.read_sets()), None)
        )

    def _find_server(self, state: KernelState, reader: KernelReader, excluded: Excluded) -> Difference | None:
        listing = reader.dump_servers()
        digest = ipvs.compute_digest(listing)
        if digest == self._digest:
            return None
        unexpected, missing = ipvs.diff_listing(listing, state.servers.values())
        keys = [s.key for s in unexpected if reader.is_of_family(s) and not excluded(s.key)]
        for want, have, found in (
            (PRESENT, "", [server.key for server in missing]),
            (PRESENT, "other settings", [key for key in keys if key in state.servers]),
            ("", PRESENT, [key for key in keys if key not in state.servers]),
        ):
            if found:
                return Difference(f"virtual server {found[0]}", want, have, detail=f"{len(found)} in all")
        self._digest = digest
        return None

    def _find_address(self, state: KernelState, reader: KernelReader) -> Difference | None:
        if reader.take_address_changes() or not self._addresses_match:
            self._addresses_match = reader.read_addresses() == state.keys[ADDRESS]
        if self._addresses_match:
            return None
        return Difference(f"addresses of {IPVS_DEVICE}", PRESENT, "other addresses")


def _diff_sets(state: KernelState, headers: Mapping[str, SetHeader]) -> Iterator[Difference]:
    for name, references in state.references.items():
        header, entries = headers.get(name), len(state.keys[name])
        if header is None:
            yield Difference(f"ipset {name}", PRESENT)
        elif header.references != references:
            what = f"rules that match on ipset {name}"
            yield Difference(what, str(references), str(header.references))
        elif header.elements not in (-1, entries):
            yield Difference(f"entries of ipset {name}", str(entries), str(header.elements))


def compare_kernel(
    context: NodeContext,
    plans: Mapping[ServicePortName, ServicePlan],
    *,
    rules: RuleSet | None,
    save: Callable[[str], bytes],
    schedulers: Schedulers,
    random_fully: bool,
    draining: Collection[RealOf],
    excluded: Excluded,
    ruleset: NftRuleset | None,
) -> list[Difference]:
    """Compile plans and return how the kernel differs from them; raises KernelError.

    `rules` are given when these are the plans of some service ports only: rules depend on all of them.
    """
    desired = Ledger(compile_each(plans, Compiler(context, schedulers).compile, {}))
    with KernelReader(context.family) as reader:
        found = reader.read(desired, only_desired=rules is not None)
    rules = rules or build_desired_rules(desired, context, random_fully=random_fully)
    return [
        *diff_servers(desired, found, draining, excluded),
        *diff_keys(desired, found),
        *diff_rule_set(rules, {table: save(table) for table, _ in rules.list_tables()}),
        *diff_dormant(ruleset),
    ]


def diff_servers(
    desired: Ledger, found: KernelState, draining: Container[RealOf], excluded: Excluded
) -> Iterator[Difference]:
    """Yield differences of virtual and real servers, except draining real servers and excluded virtual servers."""
    rows = desired.rows(SERVER)
    for key, row in rows.items():
        server, wanted, _ = row.value
        have = found.servers.get(key)
        if have != server:
            yield Difference(
                f"virtual server {key}", _describe(server), _describe(have) if have else "", row.owner
            )
        if have is None:
            continue
        weights = found.weights.get(key, {})
        for real in dict.fromkeys((*wanted, *weights)):
            want, weight = wanted.get(real), weights.get(real)
            if want == weight or (want is None and not weight and RealOf(key, real) in draining):
                continue
            yield Difference(
                f"real server {real} of {key}", _format_weight(want), _format_weight(weight), row.owner
            )
    for key, server in found.servers.items():
        if key not in rows and not excluded(key):
            yield Difference(f"virtual server {key}", "", _describe(server))


def _describe(server: VirtualServer) -> str:
    affinity = f", affinity {server.timeout} s" if server.flags & PERSISTENT else ""
    return f"scheduler {server.scheduler}{affinity}, flags {server.flags:#x}"


def _format_weight(weight: int | None) -> str:
    return "" if weight is None else f"weight {weight}"


def diff_keys(desired: Ledger, found: KernelState) -> Iterator[Difference]:
    """Yield differences of set entries and of addresses on the dummy device."""
    for kind, keys in found.keys.items():
        rows = desired.rows(kind)
        what = f"address on {IPVS_DEVICE}" if kind == ADDRESS else f"ipset {kind}"
        render = address_text if kind == ADDRESS else str
        for key, row in rows.items():
            if key not in keys:
                yield Difference(what, render(key), "", row.owner)
        for key in keys - rows.keys():
            yield Difference(what, "", render(key))


def diff_rule_set(rules: RuleSet, saved: Mapping[str, bytes]) -> Iterator[Difference]:
    """Yield differences of the rules in our chains and of the jumps to them; `saved` are tables as iptables-save prints them."""
    tables = {table: parse_chains(text) for table, text in saved.items()}
    for table, wanted in rules.list_tables():
        for chain in CHAINS[table]:
            want = [canonicalize(rule) for rule in wanted if rule.startswith(f"-A {chain} ")]
            have = canonicalize_rules(tables[table].get(chain, b""))
            yield from diff_rules(f"{table} {chain}", want, have)
    yield from diff_jumps(JUMPS, tables, lambda _jump: False)
