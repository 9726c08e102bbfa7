"""From what the kernel holds to what services want: the steps in between, in a safe order. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pointsman.backends.ipvs.batch import (
    AddEntries,
    AddReals,
    AddServers,
    AlterServers,
    Bind,
    DeleteEntries,
    NetlinkStep,
    RemoveReals,
    RemoveServers,
    RetireReals,
    Step,
    Unbind,
    WeighReals,
    WriteRules,
)
from pointsman.backends.ipvs.desired import Desired, Touched
from pointsman.backends.ipvs.known import Known
from pointsman.backends.ipvs.rules import RuleSet
from pointsman.kernel.ipvs_objects import RealOf, VirtualKey, VirtualServer


def everything(desired: Desired, known: Known) -> Touched:
    """For a full sync: every object of both sides is looked at."""
    held = ((name, entry) for name, entries in known.entries.items() for entry in entries)
    return Touched(
        {*desired.servers, *known.servers}, {*desired.entries, *held}, {*desired.addresses, *known.addresses}
    )


def steps_towards(
    desired: Desired, known: Known, touched: Touched, rules: RuleSet, excluded: Callable[[VirtualKey], bool]
) -> list[Step]:
    """What makes `known` equal to `desired` as far as `touched` goes; virtual servers `excluded` are never removed.

    Nothing here is one transaction, so the order carries the guarantees. Sets and rules come first, so that no
    packet of a new service is balanced unmasqueraded, then virtual servers with their real servers, then addresses;
    removals after all additions, the other way round. Only where the rules of iptables mode still serve, ours come
    after what they lead to.
    """
    servers = _ServerSteps(desired, known, touched, excluded)
    write = [WriteRules(rules, known.missing_jumps)] if rules != known.rules else []
    extend = _some(
        *servers.extend,
        Bind([a for a in touched.addresses if a in desired.addresses and a not in known.addresses]),
    )
    return [
        *_some(AddEntries([m for m in touched.entries if m in desired.entries and not known.has_entry(m)])),
        *((*extend, *write) if known.iptables_mode_serves else (*write, *extend)),
        *_some(
            *servers.shrink,
            Unbind([a for a in touched.addresses if a in known.addresses and a not in desired.addresses]),
            DeleteEntries([m for m in touched.entries if known.has_entry(m) and m not in desired.entries]),
        ),
    ]


class _ServerSteps:
    """What is to be done about virtual and real servers."""

    def __init__(
        self, desired: Desired, known: Known, touched: Touched, excluded: Callable[[VirtualKey], bool]
    ) -> None:
        added: list[VirtualServer] = []
        altered: list[VirtualServer] = []
        removed: list[VirtualKey] = []
        joining: dict[int, list[RealOf]] = {}
        weighing: dict[int, list[RealOf]] = {}
        leaving: list[RealOf] = []
        for key in touched.servers:
            want, have = desired.servers.get(key), known.servers.get(key)
            if want is None:
                if have is not None and not excluded(key):
                    removed.append(key)
                continue
            server, reals = want
            if have != server:
                (added if have is None else altered).append(server)
            weights = known.weights.get(key, {})
            for real, weight in reals.items():
                if weights.get(real) != weight:
                    by_weight = weighing if real in weights else joining
                    by_weight.setdefault(weight, []).append(RealOf(key, real))
            leaving += (RealOf(key, real) for real in weights.keys() - reals.keys())
        self.extend: tuple[NetlinkStep[Any], ...] = (
            AddServers(added),
            AlterServers(altered),
            *(AddReals(items, weight) for weight, items in joining.items()),
            *(WeighReals(items, weight) for weight, items in weighing.items()),
        )
        self.shrink = (
            RetireReals([item for item in leaving if desired.may_drain(item)]),
            RemoveReals([item for item in leaving if not desired.may_drain(item)]),
            RemoveServers(removed),
        )


def _some(*steps: NetlinkStep[Any] | RetireReals) -> list[Step]:
    return [step for step in steps if step.items]
