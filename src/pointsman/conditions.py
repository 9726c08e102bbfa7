"""Conditions: states of the proxy and of its node that may need action, in the shape Kubernetes uses.

A source owns a scope and replaces the conditions of that scope as a whole: what it no longer names is gone. A source that
observes a change pushes it (`ConditionBoard.replace`); one whose answer depends on the clock, or on the state of another
part, is a function that the board calls (`ConditionBoard.add_source`). `/healthz`, `/livez`, `/readyz`, `pointsman_condition`,
`status` with its exit status and the status page are views of the board and decide nothing themselves.

A change that adds a condition must also add its type or reason to the table in `wording/conditions.py`.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable

import msgspec

from pointsman.model.addresses import Family
from pointsman.obs.log import get_log
from pointsman.wording.conditions import find_remedy

STARTED = "Started"
"""Everything that the first sync needs has been listed."""
NODE_ELIGIBLE = "NodeEligible"
"""The Node object exists, and is neither being deleted nor scaled down."""
RUNNING = "Running"
"""The process is not shutting down."""

AS_EXPECTED = "AsExpected"
"""The reason of a condition that is true."""

_log = get_log(__name__)


def sync_progress_type(family: Family) -> str:
    """Return the type of the condition that a family keeps up with changes."""
    return f"SyncProgress{family.value}"


class Status(enum.Enum):
    """The status of a condition, with the values of Kubernetes; true is the good one."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Blocks(enum.Enum):
    """What a condition that is not true keeps from working. Each value includes those above it."""

    NOTHING = "nothing"
    """Packets flow, but less well than configured."""
    SERVICES = "services"
    """Some Service, or changes of objects: `status` exits with 1."""
    READINESS = "readiness"
    """`/readyz` fails."""
    TRAFFIC = "traffic"
    """`/healthz` fails: load balancers choose other nodes."""
    LIVENESS = "liveness"
    """`/livez` fails: the kubelet restarts the process."""

    def includes(self, other: Blocks) -> bool:
        order = list(Blocks)
        return order.index(self) >= order.index(other)


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """One state of the proxy or of its node; true is good."""

    type: str
    """CamelCase, and unique on a board: `SyncIPv4`."""
    status: Status
    reason: str = AS_EXPECTED
    """CamelCase code of the cause: `SyncFailed`."""
    message: str = ""
    """What is the case."""
    remedy: str = ""
    """What to do about it, where the message does not include that."""
    blocks: Blocks = Blocks.NOTHING
    since: float = 0.0
    """Unix time since which it has this status; set by the board."""

    @classmethod
    def true(cls, type_: str, blocks: Blocks = Blocks.NOTHING) -> Condition:
        return cls(type_, Status.TRUE, blocks=blocks)

    @classmethod
    def false(
        cls, type_: str, reason: str, message: str, remedy: str = "", *, blocks: Blocks = Blocks.NOTHING
    ) -> Condition:
        """`remedy` replaces that of the table of conditions, for details such as names."""
        remedy = remedy or find_remedy(type_, reason)
        return cls(type_, Status.FALSE, reason, message, remedy, blocks)

    @classmethod
    def unknown(cls, type_: str, reason: str, message: str, *, blocks: Blocks = Blocks.NOTHING) -> Condition:
        """Not determined yet, or impossible to determine."""
        return cls(type_, Status.UNKNOWN, reason, message, blocks=blocks)

    @property
    def is_true(self) -> bool:
        return self.status is Status.TRUE

    @property
    def is_failing(self) -> bool:
        """It is known to be false."""
        return self.status is Status.FALSE

    def does_block(self, what: Blocks) -> bool:
        """Return whether it keeps `what` from working now."""
        return not self.is_true and self.blocks.includes(what)

    @property
    def text(self) -> str:
        """The message with its remedy, as one line whatever they quote."""
        whole = f"{self.message}: {self.remedy}" if self.remedy else self.message
        return " ".join(whole.split())


Source = Callable[[], Iterable[Condition]]


class ConditionBoard:
    """All conditions of one proxy; lives in the event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        on_transition: Callable[[Condition, str], None] = lambda _condition, _reason: None,
    ) -> None:
        """`on_transition` gets each condition that fails for another reason than before, and each that is true again with the reason for
        which it had failed.
        """
        self._clock = clock
        self._on_transition = on_transition
        self._scopes: dict[str, tuple[Condition, ...]] = {}
        self._sources: dict[str, Source] = {}
        self._logged_elsewhere: set[str] = set()
        """Scopes whose failures are logged where they happen."""
        self._failing_scopes: set[str] = set()
        """Those whose function raised when it was last called."""
        self._known: dict[str, Condition] = {}
        """By type, as of the last replacement or refresh."""
        self._raised: dict[str, str] = {}
        """The reason by type, from the time when it fails until it is true or gone."""

    def replace(self, scope: str, conditions: Iterable[Condition]) -> None:
        """Replace all conditions of a scope by these."""
        self._scopes[scope] = tuple(conditions)
        self._note_transitions()

    def add_source(self, scope: str, source: Source, *, logged_elsewhere: bool = False) -> None:
        """Call `source` at every refresh and for every view; it must be quick. One that raises leaves its scope as it was.

        With `logged_elsewhere`, each failure is logged when it happens, so that the board logs the end of it only.
        """
        self._scopes[scope] = ()
        self._sources[scope] = source
        if logged_elsewhere:
            self._logged_elsewhere.add(scope)

    def refresh(self) -> None:
        """Call the sources that are functions, and report transitions."""
        self._call_sources()
        self._note_transitions()

    def current(self) -> tuple[Condition, ...]:
        """Return all conditions as of now, in the order in which their scopes were first named."""
        self._call_sources()
        return tuple(self._merge().values())

    def blocking(self, what: Blocks) -> list[Condition]:
        """Return the conditions that keep `what` from working now."""
        return [condition for condition in self.current() if condition.does_block(what)]

    def measure(self) -> dict[tuple[str, ...], float]:
        """Return 1 for each condition that is not true and 0 for the others, by type and reason: a gauge."""
        return {(one.type, one.reason): 0.0 if one.is_true else 1.0 for one in self.current()}

    def _call_sources(self) -> None:
        for scope, source in self._sources.items():
            try:
                self._scopes[scope] = tuple(source())
                self._failing_scopes.discard(scope)
            except Exception as error:  # noqa: BLE001 a bug in one source must not fail /livez
                if scope not in self._failing_scopes:
                    self._failing_scopes.add(scope)
                    _log.exception("Cannot determine conditions", err=error, scope=scope)

    def _merge(self) -> dict[str, Condition]:
        """Return all conditions by type. Where two scopes have the same type, one that is not true counts."""
        merged: dict[str, Condition] = {}
        now = self._clock()
        for condition in (one for conditions in self._scopes.values() for one in conditions):
            if condition.type not in merged or merged[condition.type].is_true:
                known = self._known.get(condition.type)
                since = known.since if known is not None and known.status is condition.status else now
                merged[condition.type] = msgspec.structs.replace(condition, since=since)
        return merged

    def _note_transitions(self) -> None:
        before, self._known = self._known, self._merge()
        self._raised |= {type_: one.reason for type_, one in self._known.items() if one.is_failing}
        for type_, reason in tuple(self._raised.items()):
            now = self._known.get(type_)
            if now is None or now.is_true:
                del self._raised[type_]
                _log.info("Condition cleared", type=type_, reason=reason)
                self._on_transition(now or Condition.true(type_), reason)
        silent = {one.type for scope in self._logged_elsewhere for one in self._scopes[scope]}
        for type_, condition in self._known.items():
            earlier = before.get(type_)
            is_new = earlier is None or (earlier.status, earlier.reason) != (
                condition.status,
                condition.reason,
            )
            if not condition.is_failing or not is_new:
                continue
            self._on_transition(condition, condition.reason)
            if type_ not in silent:
                _log.warning(
                    "Condition raised",
                    type=type_,
                    reason=condition.reason,
                    message=condition.message,
                    remedy=condition.remedy or None,
                    blocks=condition.blocks.value,
                )
