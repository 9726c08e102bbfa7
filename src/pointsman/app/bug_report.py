"""What a bug report needs of this machine: rules, kernel settings, tracked connections, versions. Reads only."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pointsman.errors import KernelError
from pointsman.kernel.command import Commands
from pointsman.kernel.conntrack import ConntrackTable
from pointsman.kernel.tracked_flows import FlowQuery
from pointsman.model.addresses import Family
from pointsman.model.service import Protocol
from pointsman.report.archive import Part

_PROC_SYS = Path("/proc/sys")
_SETTINGS = (
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/conf/*/rp_filter",
    "net/ipv4/conf/*/route_localnet",
    "net/ipv4/conf/*/forwarding",
    "net/ipv4/conf/*/arp_*",
    "net/ipv4/vs/*",
    "net/ipv6/conf/*/forwarding",
    "net/ipv6/conf/*/disable_ipv6",
    "net/bridge/bridge-nf-call-*",
    "net/netfilter/nf_conntrack_*",
)
_RULES = {
    "rules/nftables.txt": ("nft", "list", "ruleset"),
    "rules/iptables.txt": ("iptables-save", "-c"),
    "rules/ip6tables.txt": ("ip6tables-save", "-c"),
}
_IPSET = ("rules/ipset.txt", ("ipset", "save"))
_NETWORK = {
    "network/links.txt": ("ip", "-details", "link"),
    "network/addresses.txt": ("ip", "address"),
    "network/routes.txt": ("ip", "route", "show", "table", "all"),
    "network/routes6.txt": ("ip", "-6", "route", "show", "table", "all"),
    "network/rules.txt": ("ip", "rule"),
}
_VERSIONS = (
    ("nft", "--version"),
    ("iptables", "--version"),
    ("ip6tables", "--version"),
    ("ipset", "--version"),
    ("ip", "-Version"),
)
_PACKAGES = ("h11", "h2", "msgspec", "prometheus-client", "PyYAML")


def collect_machine_parts(commands: Commands, *, rules: bool) -> Iterator[Part]:
    """Yield everything that needs no running proxy; `rules` may name every Service of the cluster."""
    yield Part("versions.txt", "programs, packages and kernel", _list_versions(commands))
    yield Part("sysctls.txt", "kernel settings that packets depend on", _read_settings())
    yield _count_connections()
    for name, command in {**(_RULES if rules else {}), **_NETWORK}.items():
        yield _run_command(commands, name, command)
    if rules:
        yield from _read_loaded(commands)


def _read_loaded(commands: Commands) -> Iterator[Part]:
    """Yield what ipvs mode uses, where it is loaded: reading it would load unused kernel modules."""
    name, about = "rules/ipvs.txt", "virtual and real servers, as in /proc/net/ip_vs"
    try:
        yield Part(name, about, Path("/proc/net/ip_vs").read_text())
    except OSError:
        yield Part(name, about, missing="ip_vs is not loaded")
    if Path("/sys/module/ip_set").exists():
        yield _run_command(commands, *_IPSET)
    else:
        yield Part(_IPSET[0], " ".join(_IPSET[1]), missing="ip_set is not loaded")


def _run_command(commands: Commands, name: str, command: tuple[str, ...]) -> Part:
    about = " ".join(command)
    try:
        result = commands.run(command)
    except KernelError as error:
        return Part(name, about, missing=str(error))
    if result.status:
        return Part(name, about, missing=f"{about}: {result.error_text or f'exit status {result.status}'}")
    return Part(name, about, result.stdout.decode(errors="replace"))


def _read_settings() -> str:
    lines = []
    for pattern in _SETTINGS:
        for path in sorted(_PROC_SYS.glob(pattern)):
            try:
                lines.append(f"{path.relative_to(_PROC_SYS)} = {path.read_text().strip()}\n")
            except OSError as error:
                lines.append(f"{path.relative_to(_PROC_SYS)}: {error.strerror}\n")
    return "".join(lines)


def _count_connections() -> Part:
    """Count tracked connections by kind; no address is in the report."""
    name, about = "conntrack.txt", "tracked connections, counted"
    lines = []
    for setting in ("nf_conntrack_count", "nf_conntrack_max", "nf_conntrack_buckets"):
        try:
            lines.append(f"{setting} {(_PROC_SYS / 'net/netfilter' / setting).read_text().strip()}\n")
        except OSError as error:
            lines.append(f"{setting}: {error.strerror}\n")
    try:
        for family in Family:
            lines += _count_flows(family)
    except KernelError as error:
        return Part(name, about, missing=str(error))
    return Part(name, about, "".join(lines))


def _count_flows(family: Family) -> Iterator[str]:
    with ConntrackTable(family) as table:
        for protocol in Protocol:
            counts = _count_protocol(table, protocol)
            shown = ", ".join(f"{what} {counts[what]}" for what in ("all", "translated", "unreplied"))
            yield f"{family.value} {protocol.lower}: {shown}\n"


def _count_protocol(table: ConntrackTable, protocol: Protocol) -> Counter[str]:
    """Count flows. Only unanswered ones are held: a million flows would take more memory than a pod of the proxy may have."""
    counts: Counter[str] = Counter()

    def count(destination: bytes, _port: int, answering: bytes, _answering_port: int) -> bool:
        counts["all"] += 1
        counts["translated"] += answering != destination
        return False

    table.list_flows(FlowQuery(protocol.value), count)
    counts["unreplied"] = len(table.list_flows(FlowQuery(protocol.value, unreplied=True), lambda *_: True))
    return counts


def _list_versions(commands: Commands) -> str:
    lines = [f"python {platform.python_version()}", f"kernel {platform.release()} {platform.machine()}"]
    for package in ("pointsman", *_PACKAGES):
        try:
            lines.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{package}: not installed as a package")
    for command in _VERSIONS:
        part = _run_command(commands, command[0], command)
        lines.append(part.missing or part.content.strip())
    try:
        lines.append(Path("/etc/os-release").read_text().strip())
    except OSError as error:
        lines.append(f"os-release: {error.strerror}")
    return "".join(f"{line}\n" for line in lines)
