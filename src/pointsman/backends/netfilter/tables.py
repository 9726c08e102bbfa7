"""Tables as iptables-save prints them: parsed once into chains, and compared chain by chain. Pure.

A chain is one block of text, in the form in which rules are written here. Equal text is the normal case and cheap to recognise in
tables with hundreds of thousands of lines; only rules of chains that differ are brought into the canonical form, in which spellings
that vary between versions of iptables do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from pointsman.backends.contract import Difference
from pointsman.backends.netfilter import spelling
from pointsman.model.service import ServicePortName

Chains = Mapping[str, bytes]
"""The chains of a table, each with its rules (`-A CHAIN ...`) as one text."""


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


def rules_in(block: bytes) -> list[str]:
    """Return the rules of a chain, one per line."""
    return [line for line in block.decode(errors="replace").split("\n") if line]


def canonical_rules(block: bytes) -> list[str]:
    """Return the rules of a chain in the form in which they are compared."""
    return [spelling.canonical(rule) for rule in rules_in(block)]


def diff_rules(
    what: str,
    want: Sequence[str],
    have: Sequence[str],
    owners: Mapping[str, ServicePortName] = {},
    *,
    ordered: bool = True,
) -> Iterator[Difference]:
    """Yield the differences between canonical rules of one chain; `owners` tells whose rules they are."""
    if want == have:
        return
    missing, surplus = Counter(want) - Counter(have), Counter(have) - Counter(want)
    for rule in missing:
        yield Difference(what, rule, "", owners.get(rule))
    for rule in surplus:
        yield Difference(what, "", rule)
    if ordered and not missing and not surplus:
        owner = next((owners[rule] for rule in want if rule in owners), None)
        yield Difference(what, " / ".join(want), "the same rules in another order", owner)


class Jump(msgspec.Struct, frozen=True, gc=False):
    """A rule in a built-in chain that leads to one of ours."""

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
        comment = f"{spelling.comment(self.comment)} " if self.comment else ""
        match = " ".join(self.match) + " " if self.match else ""
        return f"{self.source} {match}{comment}-j {self.target}"

    def is_rule(self, rule: str) -> bool:
        """Return whether a saved rule, with its `-A`, is this jump, whatever the order of its matches."""
        return sorted(rule.split()) == sorted(f"-A {self.line}".split())

    def is_in(self, chains: Chains) -> bool:
        """Return whether the built-in chain holds this jump."""
        return any(map(self.is_rule, self._rules_to_target(chains)))

    def exists_in(self, chains: Chains, ask: Callable[[Jump], bool]) -> bool:
        """Return the same where another spelling leads to the target: then `ask`, which runs iptables, decides."""
        return self.is_in(chains) or (any(self._rules_to_target(chains)) and ask(self))

    def _rules_to_target(self, chains: Chains) -> list[str]:
        return [rule for rule in rules_in(chains.get(self.source, b"")) if f"-j {self.target}" in rule]


def diff_jumps(
    jumps: Iterable[Jump], tables: Mapping[str, Chains], ask: Callable[[Jump], bool]
) -> Iterator[Difference]:
    """Yield the jumps that built-in chains lack."""
    for jump in jumps:
        if not jump.exists_in(tables[jump.table], ask):
            yield Difference(f"{jump.table} {jump.source}", f"-A {jump.line}")
