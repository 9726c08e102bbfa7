"""One sync: the steps for rows that changed, sent to the kernel in their order, and their results."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pointsman.backends.contract import PRESENT, Difference, SyncReport
from pointsman.backends.ipvs.check import Excluded
from pointsman.backends.ipvs.compile import ADDRESS, SERVER
from pointsman.backends.ipvs.rules import JUMPS, RuleSet
from pointsman.backends.ipvs.sockets import Sockets
from pointsman.backends.ipvs.steps import (
    TCP,
    AddEntries,
    AddReals,
    AddServers,
    Bind,
    DeleteEntries,
    Draining,
    DrainReals,
    KernelState,
    NetlinkStep,
    RemoveReals,
    RemoveServers,
    Unbind,
    WriteRules,
    plan_steps,
)
from pointsman.backends.ledger import Keys, Ledger
from pointsman.backends.netfilter import names
from pointsman.backends.netfilter.names import FILTER, NAT
from pointsman.backends.netfilter.rule_text import Chains, parse_chains
from pointsman.backends.netfilter.runners import RuleTool, describe_unreadable
from pointsman.conditions import Condition
from pointsman.errors import KernelError
from pointsman.kernel.iptables import Incompatible
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, VirtualKey
from pointsman.model.addresses import address_text
from pointsman.model.service import ServicePortName

_CHANGED_EXTERNALLY = frozenset((errno.EEXIST, errno.ESRCH, errno.ENOENT))
"""Error numbers which say that the kernel does not hold what was last read."""


class SyncRun:
    """Brings the kernel from `state`, which every step updates, to `desired`; all methods raise KernelError.

    `rejected` are service ports that are left out already. `check_rejected` raises when there are too many of them.
    """

    def __init__(
        self,
        sockets: Sockets,
        iptables: RuleTool,
        desired: Ledger,
        state: KernelState,
        draining: Draining,
        *,
        now: float,
        excluded: Excluded,
        rejected: dict[ServicePortName, str],
        check_rejected: Callable[[Mapping[ServicePortName, str]], None],
    ) -> None:
        self.state = state
        self.rejected = rejected
        self.corrected: list[Difference] = []
        self.conditions: dict[str, Condition] = {}
        """By type."""
        self._sockets, self._iptables = sockets, iptables
        self._desired = desired
        self._draining, self._now = draining, now
        self._excluded = excluded
        self._check_rejected = check_rejected
        self._failed: set[VirtualKey] = set()
        """Virtual servers that were rejected, themselves or some of their real servers."""
        self._changed: set[VirtualKey] = set()
        """Virtual servers that were changed externally."""
        self._reread: set[VirtualKey] = set()
        self._written: Counter[str] = Counter()
        self._batch_bytes = 0

    def take_over(self) -> None:
        """Create the dummy device and the sets, and read what the kernel holds."""
        self._sockets.make_containers()
        self.state = self._sockets.read(self._desired)
        tables = {table: self._saved_chains(table) for table in (NAT, FILTER)}
        self.state.missing_jumps = tuple(jump for jump in JUMPS if not jump.is_in(tables[jump.table]))
        self.state.iptables_mode_serves = any(map(names.is_service_chain, tables[NAT]))

    def _saved_chains(self, table: str) -> Chains:
        """Return what the table holds; nothing where it cannot be read: a jump that is added twice does no harm."""
        try:
            return parse_chains(self._iptables.save(table))
        except Incompatible as error:
            self._add_condition(describe_unreadable(error))
            return {}

    def apply(self, touched: Keys, rules: RuleSet) -> None:
        """Take the steps for the touched rows, and again for virtual servers that were changed externally."""
        for step in plan_steps(self._desired, self.state, touched, rules, self._excluded):
            if isinstance(step, DrainReals | RemoveReals | RemoveServers | Unbind | DeleteEntries):
                self._retry_changed(rules)
            if isinstance(step, WriteRules):
                self._write_rules(step)
            elif isinstance(step, DrainReals):
                self.drain(step)
            else:
                self._send(step)
        self._retry_changed(rules)

    def _retry_changed(self, rules: RuleSet) -> None:
        """Read virtual servers that were changed externally and try again: rejections must be known before any removal."""
        keys = self._changed - self._reread
        if keys:
            self._reread |= keys
            for key in keys:
                self._sockets.reread(key, self.state)
            self.apply({SERVER: keys}, rules)

    def _write_rules(self, step: WriteRules) -> None:
        text = step.rules.restore_text(step.jumps)
        self._iptables.restore(text)
        state = self.state
        state.rules, state.missing_jumps, state.iptables_mode_serves = step.rules, (), False
        state.references = {name: header.references for name, header in self._sockets.sets().items()}
        self._batch_bytes += len(text)
        for table, lines in step.rules.tables():
            self._written[table] += len(lines)

    def drain(self, step: DrainReals) -> None:
        """Remove real servers without connections; the others get no new ones."""
        busy = {item.server for item in step.items if item.server.protocol == TCP}
        present = self._sockets.connections(busy)
        for part in self._draining.steps(step.items, present, self._now):
            self._send(part)

    def _send(self, step: NetlinkStep[Any]) -> None:
        errors = self._sockets.send(step)
        step.apply_to(self.state, errors)
        self._record(step, errors)
        if not errors:
            return
        match step:
            case AddEntries() | Bind():
                kind = ADDRESS if isinstance(step, Bind) else step.set_name
                for key, error in errors.items():
                    self.rejected.update(dict.fromkeys(self._desired.owners(kind, key), str(error)))
            case AddServers():
                self._on_servers_rejected({server.key: error for server, error in errors.items()})
            case AddReals():
                self._on_servers_rejected({item.server: error for item, error in errors.items()})
            case _:
                raise next(iter(errors.values()))
        self._check_rejected(self.rejected)

    def _record(self, step: NetlinkStep[Any], rejected: Mapping[Any, KernelError]) -> None:
        accepted = [item for item in step.items if item not in rejected]
        self._written[step.counts_as] += len(accepted)
        if isinstance(step, RemoveServers):
            self.corrected += [Difference(f"virtual server {key}", "", PRESENT) for key in accepted]
        elif isinstance(step, Unbind):
            what = f"address on {IPVS_DEVICE}"
            self.corrected += [Difference(what, "", address_text(address)) for address in accepted]
        elif isinstance(step, Bind):
            # Before it is routed locally, packets leave the node, and their flows stay untranslated.
            unrouted = [address_text(address) for address in self._sockets.unrouted(accepted)]
            if unrouted:
                message = f"not routed locally on {IPVS_DEVICE}: {', '.join(unrouted)}"
                self._add_condition(
                    Condition.false("AddressesRouted", "NoLocalRoute", message, "check `ip rule`")
                )

    def _on_servers_rejected(self, errors: Mapping[VirtualKey, KernelError]) -> None:
        """Handle rejected virtual servers or real servers of them: they were changed externally, or are not accepted."""
        for key, error in errors.items():
            if key in self._failed:
                continue
            if error.errno in _CHANGED_EXTERNALLY and key not in self._reread:
                self._changed.add(key)
            else:
                self._failed.add(key)
                self.rejected[self._desired.rows(SERVER)[key].owner] = str(error)

    def _add_condition(self, condition: Condition) -> None:
        self.conditions[condition.type] = condition

    @property
    def has_changed_servers(self) -> bool:
        return self._written[AddServers.counts_as] > 0

    def report(self, rules: RuleSet, conditions: Sequence[Condition], *, full: bool) -> SyncReport:
        return SyncReport(
            full=full,
            rejected=self.rejected,
            rules_total={table: len(lines) for table, lines in rules.tables()},
            rules_last={name: count for name, count in self._written.items() if count},
            batch_bytes=self._batch_bytes,
            corrected=self.corrected if full else (),
            conditions=conditions,
        )
