"""The iptables programs in memory: enough of edit, save and restore to run a backend without a kernel.

Understands what a service proxy sends: tables, chain declarations, -A, -I, -D, -N, -F, -X. Like the real ones it
commits table by table, refuses unknown targets and the deletion of chains in use, and names the line at fault.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable, Sequence

from pointsman.kernel.command import CommandResult, CommandTimeout

BUILT_IN = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
}
_TARGETS = frozenset(("ACCEPT", "DROP", "RETURN", "REJECT", "MARK", "MASQUERADE", "DNAT"))
_JUMP = re.compile(r" -[jg] (\S+)")

Table = dict[str, list[str]]


class Refused(Exception):
    """A line that the kernel would refuse."""


class IptablesTables:
    """A `Commands` stand-in with one set of tables."""

    def __init__(self, version: str = "1.8.9") -> None:
        self.tables: dict[str, Table] = {
            name: {chain: [] for chain in chains} for name, chains in BUILT_IN.items()
        }
        self.version = version
        self.variant = "nf_tables"
        self.can_save = self.can_list = True
        self.save_seconds = 0.0
        """How long a save takes."""
        self.calls: list[tuple[str, ...]] = []
        self.restored: list[str] = []
        self.before_restore: Callable[[str], CommandResult | None] = lambda text: None
        """Called with every restore text; a result that it returns is the answer, and nothing is loaded."""
        self.refuses: Callable[[str], bool] = lambda line: False
        """Lines of restore texts that are refused."""

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> CommandResult:
        self.calls.append(tuple(arguments))
        program = arguments[0]
        if "--version" in arguments:
            return CommandResult(0, f"iptables v{self.version} ({self.variant})\n".encode())
        if program.endswith("-restore"):
            return self._restore(stdin.decode())
        if program.endswith("-save") and not self.can_save:
            return CommandResult(1, b"", b"iptables-save broke\n")
        if program.endswith("-save") and timeout < self.save_seconds:
            raise CommandTimeout(f"{program} did not finish within {timeout:g} s and was killed")
        if program.endswith("-save"):
            return CommandResult(0, self.saved(arguments[arguments.index("-t") + 1]).encode())
        return self._edit(list(arguments))

    def saved(self, table: str) -> str:
        chains = self.tables[table]
        lines = [f"*{table}"]
        lines += [f":{chain} {'ACCEPT' if chain in BUILT_IN[table] else '-'} [0:0]" for chain in chains]
        lines += [f"-A {chain} {rule}" for chain, rules in chains.items() for rule in rules]
        return "\n".join([*lines, "COMMIT", ""])

    def _restore(self, text: str) -> CommandResult:
        answer = self.before_restore(text)
        if answer is not None:
            return answer
        self.restored.append(text)
        name, table = "", Table()
        for number, line in enumerate(text.splitlines(), 1):
            try:
                if line.startswith("*"):
                    name = line[1:]
                    table = copy.deepcopy(self.tables[name])
                elif line == "COMMIT":
                    self.tables[name] = table
                elif line.startswith(":"):
                    table[line[1:].split()[0]] = []
                elif self.refuses(line):
                    raise Refused("No such file or directory")
                else:
                    _apply(table, line)
            except Refused as error:
                return CommandResult(4, b"", f"iptables-restore: line {number}: failed ({error})\n".encode())
        return CommandResult(0)

    def _edit(self, arguments: list[str]) -> CommandResult:
        at = arguments.index("-t")
        table, (operation, chain), rule = (
            self.tables[arguments[at + 1]],
            arguments[at + 2 : at + 4],
            arguments[at + 4 :],
        )
        if operation == "-S":
            if not self.can_list:
                return CommandResult(4, b"", b"Another app is currently holding the xtables lock.\n")
            if chain not in table:
                return CommandResult(1, b"", b"iptables: No chain/target/match by that name.\n")
            return CommandResult(0, "".join(f"-A {chain} {one}\n" for one in table[chain]).encode())
        if operation == "-C":
            found = any(shlex.split(one) == rule for one in table.get(chain, ()))
            return CommandResult(0 if found else 1, b"", b"" if found else b"iptables: Bad rule.\n")
        if operation == "-N" and chain in table:
            return CommandResult(1, b"", b"iptables: Chain already exists.\n")
        try:
            _apply(table, " ".join([operation, chain, *map(_quoted, rule)]))
        except Refused as error:
            return CommandResult(1, b"", f"iptables: {error}\n".encode())
        return CommandResult(0)


def _quoted(word: str) -> str:
    return f'"{word}"' if re.search(r"[^\w\-,.]", word) else word


def _apply(table: Table, line: str) -> None:
    operation, chain, *rest = line.split(" ", 2)
    rule = rest[0] if rest else ""
    if operation == "-N":
        table[chain] = []
        return
    if chain not in table:
        raise Refused(f"no chain {chain}")
    if operation in ("-A", "-I"):
        target = _JUMP.findall(f" {rule}")
        if target and target[-1] not in table and target[-1] not in _TARGETS:
            raise Refused(f"no target {target[-1]}")
        table[chain].insert(len(table[chain]) if operation == "-A" else 0, rule)
    elif operation == "-D":
        if rule not in table[chain]:
            raise Refused("no such rule")
        table[chain].remove(rule)
    elif operation == "-F":
        table[chain].clear()
    elif operation == "-X":
        if table[chain] or any(f"-j {chain}" in f"{one} " for rules in table.values() for one in rules):
            raise Refused(f"chain {chain} is in use")
        del table[chain]
    else:
        raise Refused(f"cannot read {line}")
