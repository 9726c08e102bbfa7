"""The desired state as text: ipvsadm-save, ipset save, iptables-save, and the addresses. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.backends.contract import SyncRequest
from pointsman.backends.ipvs import sets
from pointsman.backends.ipvs.compile import ADDRESS, SERVER, Compiler, Schedulers
from pointsman.backends.ipvs.rules import CHAINS, JUMPS, build_desired_rules
from pointsman.backends.ledger import Ledger
from pointsman.backends.netfilter import names
from pointsman.kernel.ipvs_objects import (
    IPVS_DEVICE,
    PERSISTENT,
    SCHEDULER_2,
    SetEntry,
    SetHeader,
    SetType,
    VirtualServer,
)
from pointsman.model.addresses import Family, address_text
from pointsman.model.node_context import NodeContext


def build_ledger(request: SyncRequest, scheduler: str) -> Ledger:
    """Return the rows of all plans; the kernel is taken to have every scheduler."""
    compiler = Compiler(request.context, Schedulers(scheduler))
    return Ledger({name: compiler.compile(plan) for name, plan in request.plans.items()})


def render(request: SyncRequest, scheduler: str = "rr") -> str:
    """Return the whole state of one family, as the dump tools would print it after a sync."""
    desired = build_ledger(request, scheduler)
    family = request.context.family
    command = "iptables" if family is Family.IPV4 else "ip6tables"
    sections = (
        ("ipvsadm-save -n", render_servers(desired)),
        ("ipset save", render_sets(desired, family)),
        (f"{command}-save", render_rules(desired, request.context)),
        (f"addresses of {IPVS_DEVICE}", "".join(f"{line}\n" for line in render_addresses(desired))),
    )
    return "\n".join(f"# {title}\n{body}" for title, body in sections)


def render_servers(desired: Ledger) -> str:
    """Return virtual and real servers as `ipvsadm-save -n`, sorted."""
    lines: list[str] = []
    for key, row in sorted(desired.rows(SERVER).items()):
        server, weights, _ = row.value
        lines.append(f"-A {key.option} {_format_options(server)}")
        lines += [f"-a {key.option} -r {real} -m -w {weights[real]}" for real in sorted(weights)]
    return "".join(f"{line}\n" for line in lines)


def _format_options(server: VirtualServer) -> str:
    options = f"-s {server.scheduler}"
    if server.flags & PERSISTENT:
        options += f" -p {server.timeout}"
    return options + (f" -b {server.scheduler}-port" if server.flags & SCHEDULER_2 else "")


def render_sets(desired: Ledger, family: Family) -> str:
    """Return all sets as `ipset save`, empty ones included."""
    lines: list[str] = []
    for header in sets.build_headers(family):
        lines.append(_format_create(header))
        lines += [f"add {header.name} {render_entry(entry)}" for entry in sorted(desired.rows(header.name))]
    return "".join(f"{line}\n" for line in lines)


def render_entry(entry: SetEntry) -> str:
    """Return an entry as `ipset save` prints it: a network of one address has no prefix."""
    whole = entry.second and entry.prefix == len(entry.second) * 8
    return str(entry._replace(prefix=0) if whole else entry)


def _format_create(header: SetHeader) -> str:
    if header.type is SetType.BITMAP_PORT:
        return f"create {header.name} {header.type.value} range 0-65535"
    family = "inet" if header.family is Family.IPV4 else "inet6"
    return f"create {header.name} {header.type.value} family {family} hashsize 1024 maxelem {header.max_elements}"


def render_rules(desired: Ledger, context: NodeContext) -> str:
    """Return the rules as `iptables-save` on a node without other rules."""
    lines: list[str] = []
    for table, rules in build_desired_rules(desired, context).list_tables():
        lines.append(f"*{table}")
        lines += [f":{chain} ACCEPT [0:0]" for chain in names.BUILT_IN[table]]
        lines += [f":{chain} - [0:0]" for chain in sorted(CHAINS[table])]
        lines += [f"-A {jump.line}" for jump in reversed(JUMPS) if jump.table == table]
        lines += [*sorted(rules, key=lambda rule: rule.split(" ", 2)[1]), "COMMIT"]
    return "".join(f"{line}\n" for line in lines)


def render_addresses(desired: Ledger) -> Iterator[str]:
    """Yield the addresses of the dummy device, sorted."""
    for address in sorted(desired.rows(ADDRESS)):
        yield f"{address_text(address)}/{len(address) * 8}"
