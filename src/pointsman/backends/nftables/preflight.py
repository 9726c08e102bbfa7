"""Checks whether the kernel has everything that the table needs, with transactions that are never applied."""

from __future__ import annotations

import errno
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from pointsman.backends.nftables import clauses as c
from pointsman.backends.nftables import encode, schema
from pointsman.backends.nftables.batch import Batch, Operation, Steps
from pointsman.backends.nftables.fields import FamilyTraits, Field, find_traits
from pointsman.backends.nftables.schema import Chain, FlowTimeout, Hook, HookPoint, SetSpec
from pointsman.conditions import Condition
from pointsman.errors import KernelError
from pointsman.kernel.netlink import Message
from pointsman.kernel.nfnl import NEED_NFTABLES, Fault, NftablesSocket
from pointsman.kernel.sysctl import parse_kernel_version
from pointsman.model.addresses import Family
from pointsman.model.plan import ServicePlan
from pointsman.model.service import Protocol, ServicePortName

OLDEST_KERNEL = (5, 13)
"""kube-proxy's own minimum for this mode."""
SKIP_VERSION_CHECK = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"

_SCRATCH_TABLE = "pointsman-preflight"


class Checker(typing.Protocol):
    """What is needed of an `NftablesSocket`."""

    def check(self, messages: Sequence[Message]) -> list[Fault]:
        """Return what the kernel would reject."""

    def close(self) -> None: ...


def preflight(family: Family, open_socket: Callable[[], Checker] = NftablesSocket) -> list[str]:
    """Return what is missing, each with the kernel option that brings it; raises KernelError on a temporary failure."""
    problems = find_version_problems(os.uname().release, os.environ)
    try:
        socket = open_socket()
    except KernelError as error:
        if error.is_temporary:
            raise
        return [*problems, f"{error}; enable {NEED_NFTABLES}"]
    try:
        traits = find_traits(family)
        fault = _find_fault(socket, traits, [Steps(traits).add_table("preflight")])
        if fault is not None:
            if fault.errno in (errno.EPERM, errno.EACCES):
                return [*problems, "not allowed to change nftables: CAP_NET_ADMIN is needed"]
            return [*problems, f"nftables is not usable ({fault}): enable {NEED_NFTABLES}"]
        for option, operations in _build_probes(traits):
            fault = _find_fault(socket, traits, operations)
            if fault is not None:
                problems.append(f"{option} is missing or too old ({fault})")
    finally:
        socket.close()
    return problems


def _find_fault(socket: Checker, traits: FamilyTraits, operations: list[Operation]) -> Fault | None:
    usual, scratch = encode.TABLE_NAME, encode.pack_table_name(_SCRATCH_TABLE)
    # In a table of another name, existing objects do not matter.
    messages = [
        message._replace(payload=message.payload.replace(usual, scratch, 1))
        for message in Batch(traits, operations).encode()
    ]
    for fault in socket.check(messages):
        refusal = KernelError(f"probe the features of nftables: {fault}", fault.errno)
        if refusal.is_temporary:
            raise refusal
        return fault
    return None


def lacks_hash(socket: Checker, traits: FamilyTraits) -> bool:
    """Return whether the kernel lacks hashes of packet fields (CONFIG_NFT_HASH), which only some Services request."""
    spec = next(spec for spec in schema.build_static_sets() if spec.name == schema.ENDPOINTS)
    redirect = c.redirect_to_slot(spec.key, c.Draw(2, (Field.SOURCE,), 1), spec.name, traits)
    chain = Chain("preflight", (c.build_rule(redirect),), hook=Hook("nat", HookPoint.PREROUTING, 0))
    steps = Steps(traits)
    table = [steps.add_table("preflight"), steps.add_set(spec), steps.add_chain(chain)]
    return _find_fault(socket, traits, [*table, *steps.add_rules(chain)]) is not None


def lacks_timeouts(socket: Checker, traits: FamilyTraits) -> bool:
    """Return whether the kernel lacks timeouts per flow (CONFIG_NF_CONNTRACK_TIMEOUT), which only some Services request."""
    timeout = FlowTimeout(Protocol.UDP, 1)
    chain = Chain("preflight", (c.build_rule(c.set_flow_timeout(timeout.name)),))
    steps = Steps(traits)
    table = [steps.add_table("preflight"), steps.add_timeout(timeout), steps.add_chain(chain)]
    return _find_fault(socket, traits, [*table, *steps.add_rules(chain)]) is not None


def find_version_problems(release: str, environment: Mapping[str, str]) -> list[str]:
    """Return why the kernel is too old by kube-proxy's rule: distributions that ported everything back set the variable."""
    if environment.get(SKIP_VERSION_CHECK) or not (0, 0) < parse_kernel_version(release) < OLDEST_KERNEL:
        return []
    oldest = ".".join(map(str, OLDEST_KERNEL))
    return [f"kernel {release} is older than {oldest}; set {SKIP_VERSION_CHECK}=1 to try it all the same"]


def _build_probes(traits: FamilyTraits) -> Iterator[tuple[str, list[Operation]]]:
    """Yield what a kernel must have, and the operations that need it."""
    v = "4" if traits.family is Family.IPV4 else "6"
    steps = Steps(traits)
    sets = {spec.name: spec for spec in schema.build_static_sets()}
    affinity = schema.build_affinity_set("affinity-preflight", "")
    endpoint = bytes(traits.address_length - 1) + b"\x01"

    def probe(
        point: HookPoint, *clauses: c.Clause, kind: str = "filter", needs: SetSpec | None = None
    ) -> list[Operation]:
        chain = Chain("preflight", (c.build_rule(*clauses),), hook=Hook(kind, point, 0))
        needed = [] if needs is None else [steps.add_set(needs)]
        return [steps.add_table("preflight"), *needed, steps.add_chain(chain), *steps.add_rules(chain)]

    def look_up(name: str) -> list[Operation]:
        return probe(HookPoint.INPUT, c.match_set(sets[name].key, name, traits), needs=sets[name])

    slot = c.redirect_to_slot(sets[schema.ENDPOINTS].key, c.Draw(2), schema.ENDPOINTS, traits)
    redirect = (c.match_protocol(Protocol.TCP), c.redirect_to(endpoint, 80, traits))
    prerouting, entry = HookPoint.PREROUTING, HookPoint.INPUT
    yield "CONFIG_NFT_CT (nft_ct) with CONFIG_NF_CONNTRACK", probe(entry, c.NEW_CONNECTION)
    yield f"CONFIG_NFT_REJECT_IPV{v} (nft_reject_ipv{v})", probe(entry, c.reject(traits))
    yield "CONFIG_NFT_NAT (nft_chain_nat, nft_nat)", probe(prerouting, *redirect, kind="nat")
    yield "CONFIG_NFT_MASQ (nft_masq)", probe(HookPoint.POSTROUTING, c.MASQUERADE, kind="nat")
    yield f"CONFIG_NFT_FIB_IPV{v} (nft_fib_ipv{v})", probe(prerouting, c.DESTINATION_IS_NODE)
    yield "CONFIG_NFT_NUMGEN (nft_numgen)", probe(entry, c.match_share(2))
    yield "nft sets: CONFIG_NF_TABLES of 5.6 or later", look_up(schema.CLUSTER_IPS)
    yield (
        "maps of concatenations for NAT (kernel 5.13)",
        probe(prerouting, slot, kind="nat", needs=sets[schema.ENDPOINTS]),
    )
    yield "interval concatenations (kernel 5.6)", look_up(schema.FIREWALL_ALLOW)
    yield (
        "dynamic sets with timeouts (nft_dynset)",
        probe(entry, c.remember_source(affinity.name, 60, traits), needs=affinity),
    )


class OptionalFeature:
    """Service ports that request something that this kernel lacks; they are served without it."""

    def __init__(
        self,
        is_lacking: Callable[[], bool],
        needs: Callable[[ServicePlan], bool],
        remove: Callable[[ServicePlan], ServicePlan],
        reason: str,
        message: str,
    ) -> None:
        self._is_lacking, self._needs, self._remove = is_lacking, needs, remove
        self.reason, self.message = reason, message
        self._is_missing: bool | None = None
        """None until a Service requests it."""
        self._without: set[ServicePortName] = set()

    def check(self, plans: Mapping[ServicePortName, ServicePlan | None], *, again: bool = False) -> None:
        """Record which plans request it although it is missing; raises KernelError when that cannot be found out now.

        With `again`, these are all plans, and what was missing may be there by now.
        """
        if again:
            if self._is_missing:
                self._is_missing = None
            self._without.clear()
        for name, plan in plans.items():
            self._without.discard(name)
            if plan is None or not self._needs(plan):
                continue
            if self._is_missing is None:
                self._is_missing = self._is_lacking()
            if self._is_missing:
                self._without.add(name)

    def remove_unsupported(self, plan: ServicePlan) -> ServicePlan:
        """Return the plan, without the feature where the kernel lacks it."""
        return self._remove(plan) if plan.name in self._without else plan

    @property
    def is_missed(self) -> bool:
        return bool(self._without)


class OptionalFeatures:
    """Kernel features that only some Services request."""

    def __init__(self, lacks_hash: Callable[[], bool], lacks_timeouts: Callable[[], bool]) -> None:
        self._features = (
            OptionalFeature(
                lacks_hash,
                lambda plan: plan.balancing is not None and plan.balancing.scheduler.is_hash,
                lambda plan: msgspec.structs.replace(plan, balancing=None),
                "HashMissing",
                "the kernel lacks CONFIG_NFT_HASH (nft_hash): Services that ask for it are balanced at random",
            ),
            OptionalFeature(
                lacks_timeouts,
                lambda plan: bool(plan.flow_timeout),
                lambda plan: msgspec.structs.replace(plan, flow_timeout=0),
                "FlowTimeoutsMissing",
                "the kernel lacks CONFIG_NF_CONNTRACK_TIMEOUT: flows of Services that ask for a timeout expire as others do",
            ),
        )

    def check(self, plans: Mapping[ServicePortName, ServicePlan | None], *, again: bool = False) -> None:
        for feature in self._features:
            feature.check(plans, again=again)

    def remove_unsupported(self, plan: ServicePlan) -> ServicePlan:
        """Return the plan without what the kernel lacks."""
        for feature in self._features:
            plan = feature.remove_unsupported(plan)
        return plan

    def find_conditions(self) -> tuple[Condition, ...]:
        """Return one condition about everything missing that some Service requests."""
        missed = [feature for feature in self._features if feature.is_missed]
        if not missed:
            return ()
        message = "; ".join(feature.message for feature in missed)
        return (Condition.false("KernelFeatures", missed[0].reason, message),)
