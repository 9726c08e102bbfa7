"""The history: the last changes of Services, failed syncs, repairs, reloads and conditions, in bounded memory.

Three groups are kept apart, so that none can flush another: events of the proxy and its node, Services that became down, partial or
healthy, and other changes of Services. Changes of one Service are merged while they follow each other closely, each Service has a
limit of its own, and when more Services change at once than are kept one by one, the rest are only counted. So a rollout of any size
leaves a few events. There are at most 1,000 events, of about 1 KiB each.

A sync costs one append: what it changed is compared afterwards, in short steps of the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping

import msgspec

from pointsman.backends.contract import Difference
from pointsman.conditions import Condition
from pointsman.model.addresses import Family
from pointsman.model.decision import State
from pointsman.model.findings import Value, clip
from pointsman.model.history import EventKind, HistoryEvent
from pointsman.model.service import ServicePortName
from pointsman.node.service_changes import MAX_NAMED, STATE_KINDS, compare_service, find_states
from pointsman.sync.loop import SyncListener
from pointsman.sync.reconcile import PlanChange, SyncFailed, SyncOutcome
from pointsman.wording.history import ENDPOINT_CHANGES

MAX_NODE_EVENTS = 200
MAX_STATE_EVENTS = 300
MAX_CHANGE_EVENTS = 500
MAX_PER_SERVICE = 30
"""In each group."""
MERGE_SECONDS = 10.0
"""Changes of one kind of one Service are merged for that long."""
REPEAT_SECONDS = 600.0
"""The same for failed syncs and repairs with the same cause."""
MAX_SERVICES_PER_WINDOW = 50
"""Changes of Services that are kept one by one, in each group, of those within `MERGE_SECONDS`."""

_MAX_TEXT_LENGTH = 300
_STEP_SECONDS = 0.002
_STATES = frozenset(STATE_KINDS.values())
_REPEATED = frozenset((EventKind.SYNC_FAILED, EventKind.RULES_RESTORED))
_MERGED = _REPEATED | {
    EventKind.ENDPOINTS_CHANGED,
    EventKind.PORTS_ADDED,
    EventKind.PORTS_REMOVED,
    EventKind.SERVICE_CHANGED,
    EventKind.MANY_SERVICES,
}
_SUMMED = frozenset((*ENDPOINT_CHANGES, "changes", "down"))
"""Parameters that are added up when events are merged."""
_REPORTED_ELSEWHERE = frozenset(("SyncFailed", "ModifiedExternally", "ReloadRejected"))
"""Reasons of conditions whose cause is an event of its own."""

_MergeKey = tuple[EventKind, str, str, Value]


class _Group:
    """The latest events of one group, the oldest first."""

    def __init__(self, limit: int) -> None:
        self.events: dict[int, HistoryEvent] = {}
        self._limit = limit
        self._per_service: Counter[str] = Counter()
        self._window = 0.0
        self._in_window = 0

    def put(self, event: HistoryEvent) -> None:
        """Add an event, or replace the one with its number; beyond a limit the oldest is dropped."""
        if event.number not in self.events and event.service:
            self._per_service[event.service] += 1
            if self._per_service[event.service] > MAX_PER_SERVICE:
                self._drop(next(n for n, one in self.events.items() if one.service == event.service))
        self.events[event.number] = event
        if len(self.events) > self._limit:
            self._drop(next(iter(self.events)))

    def admit(self, at: float) -> bool:
        """Return whether another change of a Service at this time is kept by itself."""
        if at - self._window >= MERGE_SECONDS:
            self._window, self._in_window = at, 0
        self._in_window += 1
        return self._in_window <= MAX_SERVICES_PER_WINDOW

    def _drop(self, number: int) -> None:
        service = self.events.pop(number).service
        self._per_service[service] -= 1
        if self._per_service[service] <= 0:
            del self._per_service[service]


class History(SyncListener):
    """Events of one process; outlives its proxies, lives in the event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`call_soon` is by default that of the running event loop."""
        self._clock = clock
        self._call_soon = call_soon or (lambda call: asyncio.get_running_loop().call_soon(call))
        self.revision = int(clock() * 1000)
        """Grows with every change, and from one process to the next: there is less than one event a millisecond."""
        self._node, self._states = _Group(MAX_NODE_EVENTS), _Group(MAX_STATE_EVENTS)
        self._changes = _Group(MAX_CHANGE_EVENTS)
        self._mergeable: dict[_MergeKey, HistoryEvent] = {}
        """The newest event with each key, the oldest key first."""
        self._failures: Counter[Family] = Counter()
        """Failed syncs since the last successful one."""
        self._pending: deque[Iterator[None]] = deque()
        """Syncs whose changes are still to be compared."""

    def list_events(self) -> list[HistoryEvent]:
        """Return all events, the oldest first."""
        groups = (self._node, self._states, self._changes)
        return sorted((e for group in groups for e in group.events.values()), key=lambda e: (e.at, e.number))

    def add(
        self,
        kind: EventKind,
        *,
        family: str = "",
        service: str = "",
        at: float | None = None,
        **parameters: Value,
    ) -> None:
        """Add an event of this moment, or of a time just past; one of the same kind that is recent enough grows instead."""
        now = self._clock() if at is None else at
        parameters = {name: _shorten(value) for name, value in parameters.items()}
        key = (kind, family, service, parameters.get("error", parameters.get("what", "")))
        group = self._find_group(kind, service)
        self.revision += 1
        last = self._mergeable.pop(key, None)
        window = REPEAT_SECONDS if kind in _REPEATED else MERGE_SECONDS
        if last is not None and last.number in group.events and now - last.at < window:
            event = msgspec.structs.replace(
                last,
                count=last.count + 1,
                until=now,
                revision=self.revision,
                parameters=_merge(last.parameters, parameters),
            )
        else:
            event = HistoryEvent(
                now, kind, kind.severity, service, family, parameters, 1, now, self.revision, self.revision
            )
        group.put(event)
        if kind in _MERGED:
            self._mergeable[key] = event
            if len(self._mergeable) > MAX_NODE_EVENTS + MAX_CHANGE_EVENTS:
                del self._mergeable[next(iter(self._mergeable))]

    def on_synced(self, outcome: SyncOutcome) -> None:
        family = outcome.family.value
        if failures := self._failures.pop(outcome.family, 0):
            self.add(EventKind.SYNC_RECOVERED, family=family, failures=failures)
        if outcome.first:
            if outcome.totals.service_ports:
                self.add(
                    EventKind.FIRST_SYNC,
                    family=family,
                    servicePorts=outcome.totals.service_ports,
                    endpoints=outcome.totals.endpoints,
                    milliseconds=round(outcome.seconds * 1000),
                )
            return
        for difference in outcome.report.corrected:
            self.add(EventKind.RULES_RESTORED, family=family, what=str(difference))
        if outcome.changes:
            self._pending.append(self._add_changes(family, outcome.changes, self._clock()))
            self._call_soon(self._step)

    def on_sync_failed(self, family: Family, failure: SyncFailed, _retry_in: float) -> None:
        self._failures[family] += 1
        self.add(EventKind.SYNC_FAILED, family=family.value, error=str(failure))

    def on_drift(self, family: Family, drift: Difference, _restored_in: float) -> None:
        self.add(EventKind.RULES_RESTORED, family=family.value, what=str(drift))

    def on_condition(self, condition: Condition, reason: str) -> None:
        """Take a transition of a condition; `reason` is the one for which it failed."""
        if reason in _REPORTED_ELSEWHERE:
            return
        if condition.is_failing:
            self.add(EventKind.CONDITION_RAISED, type=condition.type, reason=reason, text=condition.text)
        else:
            self.add(EventKind.CONDITION_CLEARED, type=condition.type, reason=reason)

    def _find_group(self, kind: EventKind, service: str) -> _Group:
        if kind in _STATES:
            return self._states
        return self._changes if service or kind is EventKind.MANY_SERVICES else self._node

    def _step(self) -> None:
        """Compare changes for a short time, and let others run before the rest."""
        until = time.monotonic() + _STEP_SECONDS
        while self._pending:
            for _ in self._pending[0]:
                if time.monotonic() > until:
                    self._call_soon(self._step)
                    return
            self._pending.popleft()

    def _add_changes(
        self, family: str, changes: Mapping[ServicePortName, PlanChange], at: float
    ) -> Iterator[None]:
        """Add the events of one sync; yields after each small part."""
        by_service: dict[str, list[PlanChange]] = {}
        for name, change in changes.items():
            by_service.setdefault(name.key, []).append(change)
            yield
        for service, of_service in by_service.items():
            states = find_states(of_service)
            has_new_state = states is not None and states[0] is not states[1]
            if (self._states if has_new_state else self._changes).admit(at):
                for kind, parameters in compare_service(of_service):
                    self.add(kind, family=family, service=service, at=at, **parameters)
                if has_new_state:
                    self._mergeable.pop((EventKind.ENDPOINTS_CHANGED, family, service, ""), None)
            else:
                is_down = has_new_state and states is not None and states[1] is State.DOWN
                self.add(
                    EventKind.MANY_SERVICES,
                    family=family,
                    at=at,
                    changes=1,
                    names=(service,),
                    down=int(is_down),
                )
            yield


def _shorten(value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(clip(part, _MAX_TEXT_LENGTH) for part in value)
    return clip(value, _MAX_TEXT_LENGTH) if isinstance(value, str) else value


def _merge(old: Mapping[str, Value], new: Mapping[str, Value]) -> dict[str, Value]:
    """Add numbers up and join names, as far as they are kept; `usableBefore` stays that of the first event."""
    merged = {**old, **new, **({"usableBefore": old["usableBefore"]} if "usableBefore" in old else {})}
    for name in old.keys() & new.keys():
        before, after = old[name], new[name]
        if isinstance(before, tuple) and isinstance(after, tuple):
            merged[name] = tuple(dict.fromkeys((*before, *after)))[:MAX_NAMED]
        elif isinstance(before, int) and isinstance(after, int) and name in _SUMMED:
            merged[name] = before + after
    return merged
