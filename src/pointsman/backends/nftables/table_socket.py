"""The socket of one family's table, and what the kernel behind it lacks."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

import msgspec

from pointsman.backends.nftables.batch import Batch
from pointsman.backends.nftables.check import format_owner
from pointsman.backends.nftables.fields import FamilyTraits
from pointsman.backends.nftables.reader import Reader
from pointsman.backends.nftables.schema import TABLE
from pointsman.conditions import Condition
from pointsman.errors import Busy, KernelError
from pointsman.kernel.nfnl import CommitLog, Fault, NftablesSocket
from pointsman.model.plan import ServicePlan
from pointsman.model.service import ServicePortName

_NO_HASH = Condition.false(
    "KernelFeatures",
    "HashMissing",
    "the kernel lacks CONFIG_NFT_HASH (nft_hash): Services that ask for it are balanced at random",
)


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

    def socket(self) -> NftablesSocket:
        if self._socket is None:
            self._socket = NftablesSocket()
        return self._socket

    def reader(self) -> Reader:
        return Reader(self.socket(), self._traits)

    def commit(self, batch: Batch) -> int:
        """Apply the batch and return its bytes; raises KernelError, Busy where another process owns the table."""
        try:
            return self._commits.commit(self.socket(), batch.encode())
        except KernelError as error:
            head = self.reader().head() if error.errno == errno.EPERM else None
            if head is None or not head.owner:
                raise
            what = f"table {self._traits.keyword} {TABLE} is {format_owner(head)}"
            remedy = "no other process may change it, so stop that one"
            raise Busy(f"{what}; {remedy}", errno.EPERM) from error

    def check(self, batch: Batch) -> list[Fault]:
        """Return the kernel's faults for each object of the batch, without applying anything."""
        return self.socket().check(batch.encode(one_by_one=True))


class HashSupport:
    """Service ports that ask for a hash which this kernel lacks; they are balanced at random."""

    def __init__(self, lacks_hash: Callable[[], bool]) -> None:
        self._lacks_hash = lacks_hash
        self._is_missing: bool | None = None
        """None until a Service asks for a hash."""
        self._unhashed: set[ServicePortName] = set()

    def check(self, plans: Mapping[ServicePortName, ServicePlan | None]) -> None:
        """Record which plans ask for a missing hash; raises KernelError when that cannot be found out now."""
        for name, plan in plans.items():
            self._unhashed.discard(name)
            if plan is None or plan.balancing is None or not plan.balancing.scheduler.is_hash:
                continue
            if self._is_missing is None:
                self._is_missing = self._lacks_hash()
            if self._is_missing:
                self._unhashed.add(name)

    def check_again(self, plans: Mapping[ServicePortName, ServicePlan | None]) -> None:
        """Record it for all plans; what was missing may be there by now."""
        self._is_missing = self._is_missing and None
        self._unhashed.clear()
        self.check(plans)

    def without_unsupported(self, plan: ServicePlan) -> ServicePlan:
        """Return the plan, with random balancing where it asks for a missing hash."""
        return msgspec.structs.replace(plan, balancing=None) if plan.name in self._unhashed else plan

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return (_NO_HASH,) if self._unhashed else ()
