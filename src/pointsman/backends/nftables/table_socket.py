"""The socket of one family's table, and which service port, or which other program, made the kernel reject a batch.

The messages of a batch hold thousands of elements each, so the faults of a commit name no single object. The batch is
checked again, without applying it and with every element in a message of its own: one round names them all.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from pointsman.backends.contract import PRESENT, Difference
from pointsman.backends.nftables.batch import Batch, BatchItem
from pointsman.backends.nftables.fields import FamilyTraits
from pointsman.backends.nftables.fragment import Fragment, Owners
from pointsman.backends.nftables.reader import Reader
from pointsman.backends.nftables.schema import TABLE
from pointsman.errors import Busy, KernelError, Rejected
from pointsman.kernel.nfnl import CommitLog, Fault, NftablesSocket
from pointsman.model.service import ServicePortName

_TRANSIENT = frozenset((errno.ENOMEM, errno.EAGAIN, errno.EINTR))
"""Errors that have nothing to do with what was sent. Fewer than in `KernelError.is_temporary`: ENFILE, for one, means that
the set of an element is full."""
_MAX_FAULTS_SHOWN = 5


class TableSocket:
    """Commits batches; the socket is opened in the network namespace of the first call that needs it."""

    def __init__(self, traits: FamilyTraits, commits: CommitLog) -> None:
        self._traits = traits
        self._commits = commits
        self._socket: NftablesSocket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def get_socket(self) -> NftablesSocket:
        if self._socket is None:
            self._socket = NftablesSocket()
        return self._socket

    def open_reader(self) -> Reader:
        return Reader(self.get_socket(), self._traits)

    def commit(self, batch: Batch) -> int:
        """Apply the batch and return its bytes; raises BatchRejected for its objects, Busy where another process owns the table.

        Other errors are KernelErrors: short of memory, say, the kernel may accept the same a second later.
        """
        try:
            return self._commits.commit(self.get_socket(), batch.encode())
        except KernelError as error:
            if error.errno in _TRANSIENT:
                raise KernelError(str(error), error.errno) from error
            head = self.open_reader().read_head() if error.errno == errno.EPERM else None
            if head is None or not head.owner:
                raise
            what = f"table {self._traits.keyword} {TABLE} is {head.describe_owner()}"
            remedy = "no other process may change it, so stop that one"
            raise Busy(f"{what}; {remedy}", errno.EPERM) from error

    def check(self, batch: Batch) -> list[Fault]:
        """Return the kernel's faults for each object of the batch, without applying anything."""
        return self.get_socket().check(batch.encode(one_by_one=True))


def find_rejected_service_ports(
    batch: Batch, faults: Sequence[Fault], fragments: Mapping[ServicePortName, Fragment]
) -> dict[ServicePortName, str]:
    """Return the service ports whose objects the kernel rejects, with the reason."""
    owners = Owners(fragments)
    rejected: dict[ServicePortName, str] = {}
    for fault, item in _find_items([fault for fault in faults if fault.errno not in _TRANSIENT], batch):
        owner = owners.find(item.where, item.key)
        if owner is not None:
            rejected[owner] = f"{item.what}: {fault}"
    return rejected


def build_rejection_error(batch: Batch, faults: Sequence[Fault], code: int) -> Rejected:
    """Return the error for a batch that is rejected for objects of no service port."""
    known = _find_items([fault for fault in faults if fault.position >= 0][:_MAX_FAULTS_SHOWN], batch)
    reasons = [f"{item.what}: {fault}" for fault, item in known]
    message = "; ".join(reasons) or "; ".join(map(str, faults)) or errno.errorcode.get(code, str(code))
    return Rejected(f"nftables rejected the change: {message}", code, [item.what for _, item in known])


def find_external_object(batch: Batch, faults: Sequence[Fault]) -> Difference | None:
    """Return the external change that made the kernel reject a change, but not the full load that followed."""
    known = [fault for fault in faults if fault.position >= 0 and fault.errno not in _TRANSIENT]
    for fault, item in _find_items(known[:1], batch):
        have = "" if fault.errno == errno.ENOENT else "something else"
        return Difference(item.what, PRESENT, have, detail=f"a change was rejected: {fault}")
    return None


def _find_items(faults: Sequence[Fault], batch: Batch) -> list[tuple[Fault, BatchItem]]:
    """Pair faults with their objects, without those of the batch as a whole."""
    items = batch.find_items(fault.position for fault in faults)
    return [(fault, items[fault.position]) for fault in faults if fault.position in items]
