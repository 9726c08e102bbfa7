"""How packets get from the built-in chains into ours."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pointsman.backends.netfilter import spelling
from pointsman.backends.netfilter.saved import TableOutline


class Jump(msgspec.Struct, frozen=True, gc=False):
    """A rule in a built-in chain that leads to one of ours."""

    table: str
    source: str
    target: str
    comment: str = ""
    match: tuple[str, ...] = ()

    @property
    def rule(self) -> tuple[str, ...]:
        """As arguments."""
        said = ("-m", "comment", "--comment", self.comment) if self.comment else ()
        return (*self.match, *said, "-j", self.target)

    @property
    def line(self) -> str:
        """As save prints it, without the `-A`."""
        said = f"{spelling.comment(self.comment)} " if self.comment else ""
        match = " ".join(self.match) + " " if self.match else ""
        return f"{self.source} {match}{said}-j {self.target}"

    def is_spelled(self, rule: str) -> bool:
        """Whether a saved rule, without its `-A`, is this jump, whatever the order of its words."""
        return sorted(rule.split()) == sorted(self.line.split())

    def is_in(self, outline: TableOutline) -> bool:
        """Whether the built-in chain holds it."""
        return any(self.is_spelled(rule) for rule in outline.jumps)

    def stands_in(self, outline: TableOutline, ask: Callable[[Jump], bool]) -> bool:
        """The same, where a rule of another spelling leads there: iptables itself decides about that."""
        if self.is_in(outline):
            return True
        return bool(outline.jumps_between(self.source, self.target)) and ask(self)
