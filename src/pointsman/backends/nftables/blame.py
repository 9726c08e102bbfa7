"""Whose fault it is when the kernel refuses a batch. Pure; the backend asks the kernel.

The messages of a batch hold thousands of elements each, so nobody can be blamed by the faults of a commit. The batch
is checked again, without applying it and with every element in a message of its own: one round names them all.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from pointsman.backends.contract import Damage, Drift
from pointsman.backends.nftables.batch import Batch, Culprit
from pointsman.backends.nftables.fragment import Fragment
from pointsman.backends.nftables.key_fields import SLOT_LENGTH
from pointsman.errors import Rejected
from pointsman.kernel.nfnl import Fault
from pointsman.model.service import ServicePortName

_MOMENTARY = frozenset((errno.ENOMEM, errno.EAGAIN, errno.EINTR))
_FAULTS_SHOWN = 5


def is_momentary(code: int) -> bool:
    """A refusal that says nothing about what was sent: the same may be accepted a second later.

    Fewer than `KernelError.momentary` knows: ENFILE, for one, says of an element that its set is full.
    """
    return code in _MOMENTARY


def guilty_service_ports(
    batch: Batch, faults: Sequence[Fault], fragments: Mapping[ServicePortName, Fragment]
) -> dict[ServicePortName, str]:
    """Service ports whose objects the kernel refuses, with the reason."""
    known = [fault for fault in faults if fault.position >= 0 and not is_momentary(fault.errno)]
    if not known:
        return {}
    owners = _Owners(fragments)
    guilty: dict[ServicePortName, str] = {}
    for fault in known:
        culprit = batch.culprit(fault.position)
        owner = owners.of(culprit)
        if owner is not None:
            guilty[owner] = f"{culprit.what}: {fault}"
    return guilty


def explained(batch: Batch, faults: Sequence[Fault], code: int) -> Rejected:
    """The error for a batch that is refused although no service port is to blame."""
    known = [fault for fault in faults if fault.position >= 0][:_FAULTS_SHOWN]
    objects = [batch.culprit(fault.position).what for fault in known]
    reasons = [f"{what}: {fault}" for what, fault in zip(objects, known, strict=True)]
    message = "; ".join(reasons) or "; ".join(map(str, faults)) or errno.errorcode.get(code, str(code))
    return Rejected(f"nftables refused the change: {message}", code, objects)


def foreign_object(batch: Batch, faults: Sequence[Fault]) -> Drift | None:
    """What somebody else must have done, when the kernel refuses a change but not the whole that it leads to."""
    for fault in faults:
        if fault.position >= 0 and not is_momentary(fault.errno):
            damage = Damage.DELETED if fault.errno == errno.ENOENT else Damage.CHANGED
            return Drift(batch.culprit(fault.position).what, damage, f"a change was refused: {fault}")
    return None


class _Owners:
    """Which service port an object belongs to; where two claim the same, the later one is in the way."""

    def __init__(self, fragments: Mapping[ServicePortName, Fragment]) -> None:
        self._elements: dict[tuple[str, bytes], ServicePortName] = {}
        self._named: dict[str, ServicePortName] = {}
        for name, fragment in fragments.items():
            for element in fragment.elements:
                self._elements[element.where, element.key] = name
            for pool in fragment.pools:
                self._elements[pool.where, pool.prefix] = name
            self._named.update(dict.fromkeys(fragment.named_objects, name))

    def of(self, culprit: Culprit) -> ServicePortName | None:
        if not culprit.key:
            return self._named.get(culprit.where)
        exact = self._elements.get((culprit.where, culprit.key))
        return exact or self._elements.get((culprit.where, culprit.key[:-SLOT_LENGTH]))
