"""Whether a service port answers, in one word: the verdict that lists show and that `explain` gives its reasons for."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from pointsman.backends.contract import Mode
from pointsman.explain.packets import EVERYONE, denied_by_ranges, reached
from pointsman.explain.view import FamilyView
from pointsman.model.plan import ServicePlan


class Verdict(enum.Enum):
    """Who is answered, of the clients that no source range keeps out on purpose."""

    ANSWERS = "answers"
    PARTLY = "partly"
    DOWN = "down"


WORST_FIRST = (Verdict.DOWN, Verdict.PARTLY, Verdict.ANSWERS)


def verdict_of(answered: Iterable[bool], *, refused: bool = False) -> Verdict:
    """From what each kind of client meets at each frontend; `refused`: the kernel did not take the rules at all."""
    met = list(answered)
    if refused or not any(met):
        return Verdict.DOWN
    return Verdict.ANSWERS if all(met) else Verdict.PARTLY


def port_verdict(plan: ServicePlan, family: FamilyView, mode: Mode) -> Verdict:
    """For every kind of client, as `explain` without --from; says no word about what the kernel holds."""
    return verdict_of(
        (
            bool(reached(plan, frontend, client, family, mode))
            for frontend in plan.frontends
            for client in EVERYONE
            if not denied_by_ranges(frontend, client, family)
        ),
        refused=plan.name in family.rejected,
    )
