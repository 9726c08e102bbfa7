"""What is wrong with a running proxy: the one list behind `status`, its JSON, its exit status and the status page.

Three weights: trouble keeps a change or a Service from being served as asked; degraded works, but less well than
configured; a notice tells of Services that nobody answers for, which is seldom the proxy's fault.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from pointsman.explain.verdict import Verdict
from pointsman.wording.findings import render_finding

if TYPE_CHECKING:
    from pointsman.report.status import FamilyStatus, StatusReport, WatchReport

REJECTED_SHOWN = 20


class Weight(enum.Enum):
    """How much it matters; the heaviest one is the verdict on the proxy."""

    TROUBLE = "trouble"
    DEGRADED = "degraded"
    NOTICE = "notice"


class ProxyVerdict(enum.Enum):
    """The proxy in one word."""

    FINE = "fine"
    DEGRADED = "degraded"
    TROUBLE = "trouble"


class Trouble(msgspec.Struct, frozen=True, rename="camel"):
    """One thing to know."""

    weight: Weight
    message: str
    advice: str = ""
    """What to type next, where the message itself does not say it."""
    search: str = ""
    """What to search the list of Services for, to see which ones it is about."""


def verdict_on(troubles: Iterable[Trouble]) -> ProxyVerdict:
    weights = {trouble.weight for trouble in troubles}
    if Weight.TROUBLE in weights:
        return ProxyVerdict.TROUBLE
    return ProxyVerdict.DEGRADED if Weight.DEGRADED in weights else ProxyVerdict.FINE


def troubles_of(status: StatusReport) -> Iterator[Trouble]:
    """Everything, the heaviest first."""
    for message in _troubles(status):
        yield Trouble(Weight.TROUBLE, message)
    for check, why in status.degraded.items():
        yield Trouble(Weight.DEGRADED, f"{check}: {why}")
    yield from _notices(status)


def _troubles(status: StatusReport) -> Iterator[str]:
    if status.source_trouble:
        yield status.source_trouble
    if status.waiting_for:
        yield f"waiting for {status.waiting_for}"
    for family in status.families:
        yield from _family_troubles(family)
    for watch in status.watches:
        if not watch.connected and not watch.rejected and not status.source_trouble:
            yield f"watch of {watch.kind}: {watch.last_error or 'not connected'}"
    for watch in status.watches:
        yield from _unused(watch)
    for service, why in status.closed_ports.items():
        yield f"{service}: its health check node port is closed: {why}"
    if status.reload.error:
        yield f"the new configuration is not used: {status.reload.error}"


def _family_troubles(family: FamilyStatus) -> Iterator[str]:
    if family.last_error:
        yield f"{family.family}: last sync failed: {family.last_error}"
    if family.unhealthy:
        yield f"{family.family}: {family.unhealthy}"
    for name, why in family.rejected.items():
        yield f"{family.family}: {name} was refused: {why}"


def _unused(watch: WatchReport) -> Iterator[str]:
    for rejection in watch.rejected[:REJECTED_SHOWN]:
        yield f"not used: {render_finding(rejection)}"
    if watch.bad_objects > REJECTED_SHOWN:
        yield f"not used: {watch.bad_objects - REJECTED_SHOWN} more; see the log and -o json"


def _notices(status: StatusReport) -> Iterator[Trouble]:
    total = sum(status.service_states.values())
    for verdict, words in ((Verdict.DOWN, "down"), (Verdict.PARTLY, "answered for some clients only")):
        count = status.service_states.get(verdict.value, 0)
        if count:
            message = f"{count} of {total} service ports {'is' if count == 1 else 'are'} {words}"
            advice = f"to see which: pointsman list --state {verdict.value}"
            yield Trouble(Weight.NOTICE, message, advice, search=verdict.value)
