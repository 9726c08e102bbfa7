"""Does this kernel have everything the table needs? Asked with transactions that are never applied."""

from __future__ import annotations

import errno
import os
import typing
from collections.abc import Callable, Mapping, Sequence

from pointsman.backends.nftables import clauses as c
from pointsman.backends.nftables import encode, schema
from pointsman.backends.nftables.batch import Batch, Operation, Steps
from pointsman.backends.nftables.fields import FamilyTraits, Field, find_traits
from pointsman.backends.nftables.schema import Chain, Hook, HookPoint
from pointsman.errors import KernelError
from pointsman.kernel.netlink import Message
from pointsman.kernel.nfnl import NEED_NFTABLES, Fault, NftablesSocket
from pointsman.kernel.sysctl import parse_kernel_version
from pointsman.model.addresses import Family
from pointsman.model.service import Protocol

OLDEST_KERNEL = (5, 13)
"""kube-proxy's own minimum for this mode."""
SKIP_VERSION_CHECK = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"

_SCRATCH_TABLE = "pointsman-preflight"


class Checker(typing.Protocol):
    """What is needed of an `NftablesSocket`."""

    def check(self, messages: Sequence[Message]) -> list[Fault]:
        """What the kernel would say."""

    def close(self) -> None: ...


def preflight(family: Family, open_socket: Callable[[], Checker] = NftablesSocket) -> list[str]:
    """What is missing, each with the kernel option that brings it; raises KernelError when the kernel cannot say for now."""
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
    ours, scratch = encode.TABLE_NAME, encode.pack_table_name(_SCRATCH_TABLE)
    # In a table of another name, existing objects do not matter.
    messages = [
        message._replace(payload=message.payload.replace(ours, scratch, 1))
        for message in Batch(traits, operations).encode()
    ]
    for fault in socket.check(messages):
        refusal = KernelError(f"ask what nftables can do: {fault}", fault.errno)
        if refusal.is_temporary:
            raise refusal
        return fault
    return None


def lacks_hash(socket: Checker, traits: FamilyTraits) -> bool:
    """Whether the kernel has no hashes of packet fields (CONFIG_NFT_HASH), which only some Services ask for."""
    draw = c.Draw(2, (Field.SOURCE,), 1)
    fields = (*schema.FRONTEND, Field.SLOT)
    chain = Chain(
        "preflight",
        (c.build_rule(c.redirect_to_slot(fields, draw, schema.ENDPOINTS, traits)),),
        hook=Hook("nat", HookPoint.PREROUTING, 0),
    )
    steps = Steps(traits)
    endpoints = next(spec for spec in schema.build_static_sets() if spec.name == schema.ENDPOINTS)
    table = [steps.add_table("preflight"), steps.add_set(endpoints), steps.add_chain(chain)]
    return _find_fault(socket, traits, [*table, *steps.add_rules(chain)]) is not None


def find_version_problems(release: str, environment: Mapping[str, str]) -> list[str]:
    """kube-proxy's rule: distributions that ported everything back set the variable."""
    if environment.get(SKIP_VERSION_CHECK) or not (0, 0) < parse_kernel_version(release) < OLDEST_KERNEL:
        return []
    oldest = ".".join(map(str, OLDEST_KERNEL))
    return [f"kernel {release} is older than {oldest}; set {SKIP_VERSION_CHECK}=1 to try it all the same"]


def _build_probes(traits: FamilyTraits) -> list[tuple[str, list[Operation]]]:
    v = "4" if traits.family is Family.IPV4 else "6"
    sets = {spec.name: spec for spec in schema.build_static_sets()}
    steps = Steps(traits)
    destination = (Field.DESTINATION,)

    def probe(kind: str, point: HookPoint, rule: c.Rule, *needed: str) -> list[Operation]:
        chain = Chain("preflight", (rule,), hook=Hook(kind, point, 0))
        extra = schema.build_affinity_set("affinity-preflight", "")
        return [
            steps.add_table("preflight"),
            *(steps.add_set(sets.get(name, extra)) for name in needed),
            steps.add_chain(chain),
            *steps.add_rules(chain),
        ]

    prerouting, postrouting, entry = HookPoint.PREROUTING, HookPoint.POSTROUTING, HookPoint.INPUT
    fields = (*schema.FRONTEND, Field.SLOT)
    allow = (*schema.FRONTEND, Field.SOURCE)
    return [
        (
            "CONFIG_NFT_CT (nft_ct) with CONFIG_NF_CONNTRACK",
            probe("filter", entry, c.build_rule(c.NEW_CONNECTION)),
        ),
        (
            f"CONFIG_NFT_REJECT_IPV{v} (nft_reject_ipv{v})",
            probe("filter", entry, c.build_rule(c.reject(traits))),
        ),
        ("CONFIG_NFT_NAT (nft_chain_nat, nft_nat)", probe("nat", prerouting, _build_nat_rule(traits))),
        ("CONFIG_NFT_MASQ (nft_masq)", probe("nat", postrouting, c.build_rule(c.MASQUERADE))),
        (
            f"CONFIG_NFT_FIB_IPV{v} (nft_fib_ipv{v})",
            probe("filter", prerouting, c.build_rule(c.DESTINATION_IS_NODE)),
        ),
        ("CONFIG_NFT_NUMGEN (nft_numgen)", probe("filter", entry, c.build_rule(c.match_share(2)))),
        (
            "nft sets: CONFIG_NF_TABLES of 5.6 or later",
            probe(
                "filter",
                entry,
                c.build_rule(c.match_set(destination, schema.CLUSTER_IPS, traits)),
                schema.CLUSTER_IPS,
            ),
        ),
        (
            "maps of concatenations for NAT (kernel 5.13)",
            probe(
                "nat",
                prerouting,
                c.build_rule(c.redirect_to_slot(fields, c.Draw(2), schema.ENDPOINTS, traits)),
                schema.ENDPOINTS,
            ),
        ),
        (
            "interval concatenations (kernel 5.6)",
            probe(
                "filter",
                entry,
                c.build_rule(c.match_set(allow, schema.FIREWALL_ALLOW, traits)),
                schema.FIREWALL_ALLOW,
            ),
        ),
        (
            "dynamic sets with timeouts (nft_dynset)",
            probe(
                "filter",
                entry,
                c.build_rule(c.remember_source("affinity-preflight", 60, traits)),
                "affinity-preflight",
            ),
        ),
    ]


def _build_nat_rule(traits: FamilyTraits) -> c.Rule:
    return c.build_rule(
        c.match_protocol(Protocol.TCP), c.redirect_to(bytes(traits.address_length - 1) + b"\x01", 80, traits)
    )
