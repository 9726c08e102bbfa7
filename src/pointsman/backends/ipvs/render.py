"""The desired state as text an operator knows: ipvsadm-save, ipset save, iptables-save, and the addresses. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.backends.contract import SyncRequest
from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.compile import Compiler
from pointsman.backends.ipvs.desired import Desired
from pointsman.backends.ipvs.rules import CHAINS, JUMPS
from pointsman.backends.ipvs.schedulers import Schedulers
from pointsman.kernel.ipset_objects import SetEntry, SetHeader, SetType
from pointsman.kernel.ipvs_objects import IPVS_DEVICE, PERSISTENT, SCHEDULER_2, VirtualServer
from pointsman.model.addresses import Family, address_text
from pointsman.model.node_context import NodeContext

_BUILT_IN = {
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
}


def desired_of(request: SyncRequest, scheduler: str) -> Desired:
    """What the plans of a request want; annotations name schedulers the kernel is trusted to have."""
    compiler = Compiler(request.context, Schedulers(scheduler))
    return Desired({name: compiler.fragment(plan) for name, plan in request.plans.items()})


def render(request: SyncRequest, scheduler: str = "rr") -> str:
    """The whole state of one family, as the dump tools would print it after a sync."""
    desired = desired_of(request, scheduler)
    family = request.context.family
    command = "iptables" if family is Family.IPV4 else "ip6tables"
    sections = (
        ("ipvsadm-save -n", servers_text(desired)),
        ("ipset save", sets_text(desired, family)),
        (f"{command}-save", rules_text(desired, request.context)),
        (f"addresses of {IPVS_DEVICE}", "".join(f"{line}\n" for line in address_lines(desired))),
    )
    return "\n".join(f"# {title}\n{body}" for title, body in sections)


def servers_text(desired: Desired) -> str:
    """As `ipvsadm-save -n`, sorted."""
    lines: list[str] = []
    for key in sorted(desired.servers):
        server, reals = desired.servers[key]
        lines.append(f"-A {key.option} {_options(server)}")
        lines += [f"-a {key.option} -r {real} -m -w {reals[real]}" for real in sorted(reals)]
    return "".join(f"{line}\n" for line in lines)


def _options(server: VirtualServer) -> str:
    words = f"-s {server.scheduler}"
    if server.flags & PERSISTENT:
        words += f" -p {server.timeout}"
    return words + (f" -b {server.scheduler}-port" if server.flags & SCHEDULER_2 else "")


def sets_text(desired: Desired, family: Family) -> str:
    """As `ipset save`, with sets that have no entries, too."""
    by_set: dict[str, list[SetEntry]] = {}
    for name, entry in desired.entries:
        by_set.setdefault(name, []).append(entry)
    lines: list[str] = []
    for header in sets.headers(family):
        lines.append(_create(header))
        lines += [f"add {header.name} {entry_text(entry)}" for entry in sorted(by_set.get(header.name, ()))]
    return "".join(f"{line}\n" for line in lines)


def entry_text(entry: SetEntry) -> str:
    """As `ipset save` prints it: a network of one address has no prefix."""
    whole = entry.second and entry.prefix == len(entry.second) * 8
    return str(entry._replace(prefix=0) if whole else entry)


def _create(header: SetHeader) -> str:
    if header.type is SetType.BITMAP_PORT:
        return f"create {header.name} {header.type.value} range 0-65535"
    family = "inet" if header.family is Family.IPV4 else "inet6"
    return f"create {header.name} {header.type.value} family {family} hashsize 1024 maxelem {header.max_elements}"


def rules_text(desired: Desired, context: NodeContext) -> str:
    """As `iptables-save` of a node without other rules."""
    lines: list[str] = []
    for table, rules in desired.rules(context).tables():
        lines.append(f"*{table}")
        lines += [f":{chain} ACCEPT [0:0]" for chain in _BUILT_IN[table]]
        lines += [f":{chain} - [0:0]" for chain in sorted(CHAINS[table])]
        lines += [f"-A {jump.line}" for jump in reversed(JUMPS) if jump.table == table]
        lines += [*sorted(rules, key=lambda rule: rule.split(" ", 2)[1]), "COMMIT"]
    return "".join(f"{line}\n" for line in lines)


def address_lines(desired: Desired) -> Iterator[str]:
    """The addresses bound to the dummy device, sorted."""
    for address in sorted(desired.addresses):
        yield f"{address_text(address)}/{len(address) * 8}"
