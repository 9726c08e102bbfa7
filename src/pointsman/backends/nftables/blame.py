"""Whose fault it is when the kernel refuses a batch. Pure; the backend asks the kernel.

The messages of a batch hold thousands of elements each, so nobody can be blamed by the faults of a commit. The batch
is checked again, without applying it and with every element in a message of its own: one round names them all.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from pointsman.backends.contract import PRESENT, Difference
from pointsman.backends.nftables.batch import Batch
from pointsman.backends.nftables.fragment import Fragment, Owners
from pointsman.errors import Rejected
from pointsman.kernel.nfnl import Fault
from pointsman.model.service import ServicePortName

_MOMENTARY = frozenset((errno.ENOMEM, errno.EAGAIN, errno.EINTR))
_FAULTS_SHOWN = 5


def is_momentary(code: int) -> bool:
    """A refusal that says nothing about what was sent: the same may be accepted a second later.

    Fewer than `KernelError.is_temporary` knows: ENFILE, for one, says of an element that its set is full.
    """
    return code in _MOMENTARY


def guilty_service_ports(
    batch: Batch, faults: Sequence[Fault], fragments: Mapping[ServicePortName, Fragment]
) -> dict[ServicePortName, str]:
    """Service ports whose objects the kernel refuses, with the reason."""
    known = [fault for fault in faults if fault.position >= 0 and not is_momentary(fault.errno)]
    if not known:
        return {}
    owners = Owners(fragments)
    guilty: dict[ServicePortName, str] = {}
    for fault in known:
        culprit = batch.culprit(fault.position)
        owner = owners.find(culprit.where, culprit.key)
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


def foreign_object(batch: Batch, faults: Sequence[Fault]) -> Difference | None:
    """What somebody else must have done, when the kernel refuses a change but not the whole that it leads to."""
    for fault in faults:
        if fault.position >= 0 and not is_momentary(fault.errno):
            have = "" if fault.errno == errno.ENOENT else "something else"
            what = batch.culprit(fault.position).what
            return Difference(what, PRESENT, have, detail=f"a change was rejected: {fault}")
    return None
