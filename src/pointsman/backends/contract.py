"""The contract between the process and a proxy mode.

A `Mode` is everything that the rest of the program uses of a mode: no code outside its package compares its name. A backend
belongs to one IP family and one worker thread. It owns what it put into the kernel: it sends only what differs from what it
committed last, and commits only what the kernel accepted. The caller owns the plans. `sync` either succeeds (without single
service ports that the kernel rejected, named in the report) or raises KernelError; then the old kernel state remains, and the
caller repeats the changes with `full=True`.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pointsman.errors import Rejected
from pointsman.model.addresses import Family
from pointsman.model.balancing import Capabilities
from pointsman.model.findings import Finding
from pointsman.model.node_context import NodeContext, NodePortAddresses
from pointsman.model.objects import Service
from pointsman.model.plan import FrontendKind, ServicePlan
from pointsman.model.service import Protocol, ServicePortName
from pointsman.obs import MetricGroup

if TYPE_CHECKING:
    from pointsman.conditions import Condition
    from pointsman.config.types import KubeProxyConfiguration
    from pointsman.kernel.sysctl import Sysctls

_Fragment = TypeVar("_Fragment")

PRESENT = "present"
"""Value in a `Difference` for an object that has nothing but its name."""


def compile_each(
    plans: Mapping[ServicePortName, ServicePlan],
    compile_one: Callable[[ServicePlan], _Fragment],
    rejected: dict[ServicePortName, str],
) -> dict[ServicePortName, _Fragment]:
    """Compile all plans; one that cannot be compiled goes into `rejected` and affects no other."""
    fragments: dict[ServicePortName, _Fragment] = {}
    for name, plan in plans.items():
        try:
            fragments[name] = compile_one(plan)
        except Exception as error:  # noqa: BLE001 one object must never keep the others from being served
            rejected[name] = f"cannot be compiled: {error!r}"
    return fragments


def abort_if_mostly_rejected(
    rejected: Mapping[ServicePortName, str], total: int, before: Collection[ServicePortName]
) -> None:
    """Raise when more than half of all service ports would be skipped; call it before anything is removed from the kernel.

    That many errors point at this program or the kernel, and the present rules serve better than none. Service ports that
    the last successful sync skipped as well do not count: deleting the others must stay possible.
    """
    if 2 * len(rejected) > total and not rejected.keys() <= set(before):
        name, reason = next(iter(rejected.items()))
        raise Rejected(
            f"{len(rejected)} of {total} service ports were rejected, {name} among them ({reason});"
            " keeping the present rules",
            errno.EINVAL,
        )


def plans_to_compare(
    plans: Mapping[ServicePortName, ServicePlan],
    only: Collection[ServicePortName] | None,
    rejected: Collection[ServicePortName],
) -> dict[ServicePortName, ServicePlan]:
    """Return the plans to compare: those requested, without those the kernel rejected."""
    names = plans.keys() if only is None else plans.keys() & set(only)
    return {name: plans[name] for name in names if name not in rejected}


class SyncRequest(msgspec.Struct, frozen=True):
    """Desired state: all plans, and which of them changed since the last successful sync."""

    context: NodeContext
    plans: Mapping[ServicePortName, ServicePlan]
    """Every current plan; the backend must neither keep nor change the mapping."""
    changed: Mapping[ServicePortName, ServicePlan | None]
    """Plans that are new or different; None for service ports that are gone. Ignored when `full`."""
    full: bool = False
    """Make the kernel equal to `plans`, whatever it holds now."""


class OtherProxy(enum.Enum):
    """Another proxy that writes the same rules as this one."""

    KUBE_PROXY = "kube-proxy"
    POINTSMAN = "another Pointsman"
    UNKNOWN = "an unknown program"


class Difference(msgspec.Struct, frozen=True, rename="camel"):
    """One kernel object that is not as desired; *drift* when the cause is external."""

    what: str
    """The kernel object, e.g. `map service-ips 10.96.0.1 . tcp . 443`."""
    want: str = ""
    """Empty when the kernel holds something it should not."""
    have: str = ""
    """Empty when something is missing."""
    owner: ServicePortName | None = None
    """The service port it belongs to; None for shared objects and those of unknown origin."""
    other_proxy: OtherProxy | None = None
    """Set when another proxy caused it: its rules serve the traffic until those of this one are restored."""
    detail: str = ""

    @property
    def change(self) -> str:
        """What happened to the object: changed, deleted or added."""
        return "changed" if self.want and self.have else "deleted" if self.want else "added"

    def __str__(self) -> str:
        values = f"{self.have} instead of {self.want}" if self.want and self.have else self.want or self.have
        details = "; ".join(filter(None, ("" if values == PRESENT else values, self.detail)))
        author = f" by {self.other_proxy.value}" if self.other_proxy else ""
        return f"{self.what}: {self.change}{f' ({details})' if details else ''}{author}"


class SyncReport(msgspec.Struct, frozen=True):
    """What a successful sync did."""

    full: bool
    rejected: Mapping[ServicePortName, str] = {}
    """Service ports that were skipped because the kernel rejected them, with the reason."""
    rules_total: Mapping[str, int] = {}
    """Rules (iptables: per table) or elements (nftables: per set and map) owned after this sync."""
    rules_last: Mapping[str, int] = {}
    """The same, counting only what this sync wrote."""
    batch_bytes: int = 0
    drift: Difference | None = None
    """An external change that this sync found and repaired by loading everything."""
    corrected: Sequence[Difference] = ()
    """What a full sync found besides our own rules and corrected: leftovers, another proxy's table, dormant tables."""
    conditions: Sequence[Condition] = ()
    """What works less well than configured as of this sync."""


class Comparison(msgspec.Struct, frozen=True):
    """The kernel against the desired state of one moment.

    It has its own sockets and copies of what the backend committed, so that it may run on any thread while the backend
    continues to sync.
    """

    differences: Callable[[], list[Difference]]
    """Read the kernel, change nothing; raises KernelError when it cannot be read."""


class Traffic(msgspec.Struct, frozen=True):
    """What the kernel counted since some point in time; empty where the mode does not count it."""

    connections: Mapping[ServicePortName, int] = {}
    endpoint_connections: Mapping[tuple[ServicePortName, str], int] = {}
    """By service port and endpoint (`ip:port`)."""
    packets: Mapping[ServicePortName, int] = {}
    """Of both directions, like `bytes`."""
    bytes: Mapping[ServicePortName, int] = {}


class Backend:
    """One proxy mode for one IP family. The defaults are those of a mode without a kernel of its own."""

    family: Family

    def sync(self, request: SyncRequest) -> SyncReport:
        """Bring the kernel to the desired state; raises KernelError and changes nothing on failure."""
        raise NotImplementedError

    def check(self) -> Difference | None:
        """Do what is due from time to time between syncs: `maintain`, then `find_drift`. Raises KernelError."""
        self.maintain()
        return self.find_drift()

    def maintain(self) -> None:
        """Finish what an earlier sync could only begin, at little cost; raises KernelError."""

    def find_drift(self) -> Difference | None:
        """Check cheaply for external changes; None when there are none. Raises KernelError when the kernel cannot be read."""
        return None

    @property
    def external_changes(self) -> int | None:
        """Number of external changes that `find_drift` saw and could not check completely; None where it cannot see them.

        Each is followed by a comparison; with None there is one every `Mode.compare_seconds`.
        """
        return None

    def prepare_comparison(
        self, request: SyncRequest, only: Collection[ServicePortName] | None = None
    ) -> Comparison:
        """Prepare a comparison of the kernel with the desired state; quick, reads nothing yet.

        With `only`, of these service ports and of what all share; objects of others are then no difference.
        `request.plans` must not change afterwards.
        """
        _ = request, only
        return Comparison(list)

    def count_traffic(self) -> Traffic:
        """Return what service ports carried so far; empty where the mode does not count it."""
        return Traffic()

    def close(self) -> None:
        """Release sockets; kernel state stays."""


class CleanupStatus(enum.Enum):
    """What happened to an object that clean-up found."""

    REMOVED = "removed"
    RESTORED = "restored"
    """A kernel setting has its original value again."""
    KEPT = "kept"
    """Deliberately: another program uses it or changed it."""
    FAILED = "failed"


NOT_OURS = "not made by Pointsman; --all-proxies removes it"


class CleanupItem(msgspec.Struct, frozen=True):
    """One object, or several of a kind, that clean-up handled."""

    kind: str
    """`chain`, `table`, `virtual servers` ..."""
    name: str = ""
    """Empty where the kind is enough."""
    where: str = ""
    status: CleanupStatus = CleanupStatus.REMOVED
    why: str = ""
    """Empty when it was simply removed."""
    count: int = 0
    """Number of objects, where they are not named one by one."""


class CleanupContext(msgspec.Struct, frozen=True):
    """Input of the clean-up of a mode."""

    sysctls: Sysctls
    families: Sequence[Family]
    keep: Mapping[str, Collection[str]] = {}
    """Netfilter chains, by table, that the running mode uses and that must stay."""
    all_proxies: bool = True
    """Also remove what another proxy, such as kube-proxy, made."""
    dry_run: bool = False
    """Change nothing, only report."""
    exclude_cidrs: Sequence[str] = ()
    """Ranges of the virtual servers that belong to other programs and stay."""


class Announcement(msgspec.Struct, frozen=True):
    """A warning about the mode itself, sent as an event of the Node at every start."""

    reason: str
    note: str


class KernelCounter(msgspec.Struct, frozen=True):
    """A counter in the kernel that is exposed as a metric of this mode."""

    metric: str
    help: str
    read: Callable[[], int | None]
    """None where the kernel does not have it; must not block or raise."""


class Count(msgspec.Struct, frozen=True):
    """Connections that the kernel counted at one frontend, or from it to one endpoint, since some point in time."""

    protocol: int
    address: bytes
    """Empty for a node port."""
    port: int
    connections: int
    endpoint: str = ""
    """`ip:port`; empty for the frontend as a whole."""
    bytes: int = 0
    """Of both directions, where the mode counts them."""


class Counting(msgspec.Struct, frozen=True):
    """How commands read the connections that the rules of a mode count, without the proxy."""

    read: Callable[[Family], Sequence[Count] | None]
    """None when nothing is counted at present; raises KernelError."""
    missing: str = ""
    """Shown when nothing is counted: what that means and what to do."""
    limits: str = ""
    """Shown when something is counted: what is not."""


class LoopbackNodePort(msgspec.Struct, frozen=True):
    """A node port at a loopback address, for `PacketQuirks.loopback_denial`."""

    address: bytes
    protocol: Protocol
    where: NodePortAddresses
    allowed: bool
    """The configuration allows it; see `Mode.localhost_node_ports`."""


def _never_on_loopback(_question: LoopbackNodePort) -> str:
    return "this mode does not serve node ports on loopback"


class PacketQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """What is special about a mode; by default nothing."""

    local_falls_back: bool = False
    """Policy Local without local endpoints leads to remote ones instead of nowhere."""
    holds_addresses: bool = False
    """Service addresses are addresses of the node, so its own packets to them have them as their source."""
    rejects_denied_when_empty: bool = False
    """Clients outside the source ranges are rejected, not dropped, while the Service has no endpoints."""
    own_packets_leave: bool = False
    """The node's own packets to an external address without endpoints leave the node instead of being rejected."""
    rejects_other_ports_of: frozenset[FrontendKind] = frozenset()
    """At addresses of these kinds, ports that no Service has are rejected."""
    drops_unallocated: bool = False
    """Packets to addresses of the service range that no Service has are dropped."""
    usual_node_ports: str = ""
    """Where node ports answer when nothing is configured, as text; empty for everywhere."""
    untraceable: str = ""
    """What tracing with nftables does not show of this mode, as text."""
    loopback_denial: Callable[[LoopbackNodePort], str] = _never_on_loopback
    """Why the node port does not answer there; empty when it does."""


def _counts_nothing(_family: Family) -> None:
    return None


class Setup(msgspec.Struct, frozen=True):
    """What a mode gets from the command line and the configuration."""

    config: KubeProxyConfiguration
    """`mode` is decided."""
    service_metrics: bool = False


def _nothing_to_prepare(_setup: Setup, _sysctls: Sysctls, _families: Sequence[Family]) -> None:
    pass


class Migration(msgspec.Struct, frozen=True):
    """The move of a cluster to a mode."""

    configuration: KubeProxyConfiguration
    """Converted, so that as much as possible stays as it is."""
    findings: tuple[Finding, ...]
    """What changes all the same, errors first; an error prevents the move."""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy mode: the value `MODE` in `mode.py` of its package."""

    name: str
    preflight: Callable[[Setup, Family], Sequence[str]]
    """What this machine lacks, each with the remedy; empty when the mode can run. Changes nothing."""
    prepare: Callable[[Setup, Sysctls, Sequence[Family]], None] = _nothing_to_prepare
    """The part of the start that needs full privileges."""
    before_unprivileged: Callable[[Setup, Sysctls, Sequence[Family]], None] = _nothing_to_prepare
    """Make the settings that a backend makes with its rules, for one that will not have the privilege (`--init-only`)."""
    backend: Callable[[Setup, Family, Sysctls], Backend]
    render: Callable[[Setup, SyncRequest], str]
    """Return the exact rules as text; needs neither kernel nor privileges."""
    cleanup: Callable[[CleanupContext], Iterator[CleanupItem]]
    """Remove what the mode left in the kernel, also in another process; a missing kernel feature is no error.

    A mode that writes the same objects as kube-proxy must mark its own, and keep others unless `all_proxies`.
    """
    chains: Mapping[str, Collection[str]] = {}
    """Netfilter chains, by table, that other modes use as well: their clean-up must keep them."""
    quirks: PacketQuirks = PacketQuirks()
    localhost_node_ports: Callable[[KubeProxyConfiguration], bool]
    """Return whether the configuration allows node ports on loopback."""
    migration: Callable[[KubeProxyConfiguration, Sequence[Service], tuple[int, int]], Migration] | None = None
    """Return the move from the configured mode to this one, for these Services and the kernel of the nodes."""
    listens_on_loopback: bool = False
    """Node ports on loopback are served by listeners of the process, not by rules."""
    drift_seconds: float | None = None
    """Interval of drift checks; None for the sync period."""
    compare_seconds: float | None = None
    """Interval of full comparisons where drift checks see only a part; None where they see everything.

    Where the backend counts `external_changes`, how soon to compare after one.
    """
    capabilities: Capabilities = Capabilities()
    metrics: frozenset[MetricGroup] = frozenset()
    counters: tuple[KernelCounter, ...] = ()
    announcements: tuple[Announcement, ...] = ()
    counting: Counting = Counting(
        _counts_nothing,
        "this mode counts no connections: shown are those that were tracked at a reading and not at the one before, so "
        "shorter ones are missed",
    )
