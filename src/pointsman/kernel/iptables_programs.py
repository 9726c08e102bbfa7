"""Which iptables programs to run and what they can do: variants, versions, flags.

A host may have iptables twice: one writing nftables rules (`nft`), one writing to the old interface (`legacy`).
Rules written through one are invisible to the other, so all programs on a node must use the same. The rule here:

1. a variant given by the operator (POINTSMAN_IPTABLES_VARIANT=nft or legacy) is used;
2. otherwise the one in which the kubelet (chains KUBE-IPTABLES-HINT, KUBE-KUBELET-CANARY) or an earlier service
   proxy (KUBE-PROXY-CANARY, KUBE-SERVICES) has left chains;
3. otherwise the one with more rules;
4. otherwise plain `iptables`, whatever the host's default is.

Legacy is looked at only if its tables are already in use: merely listing them would create them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.command import Commands
from pointsman.model.addresses import Family

OVERRIDE = "POINTSMAN_IPTABLES_VARIANT"
HOST_DEFAULT = ""
NFT = "nft"
LEGACY = "legacy"

_CHECK = (1, 4, 11)
_WAIT = (1, 4, 20)
_WAIT_SECONDS = (1, 4, 22)
_WAIT_INTERVAL = (1, 6, 1)
_RESTORE_WAIT = (1, 6, 2)
_RANDOM_FULLY = (1, 6, 2)
_INTERVAL_DEPRECATED = (1, 8, 8)

_VERSION = re.compile(r"v(\d+(?:\.\d+)+)")
_HINT_CHAIN = re.compile(rb"^:KUBE-(?:IPTABLES-HINT|KUBELET-CANARY) ", re.MULTILINE)
_PROXY_CHAIN = re.compile(rb"^:KUBE-(?:PROXY-CANARY|SERVICES) ", re.MULTILINE)
_RULE = re.compile(rb"^-A ", re.MULTILINE)


class Programs(msgspec.Struct, frozen=True, gc=False):
    """Names of the three programs of one family and variant."""

    edit: str
    save: str
    restore: str


class Features(msgspec.Struct, frozen=True, gc=False):
    """What an installed version can do."""

    version: tuple[int, ...]
    check: bool
    """The option `-C` exists; without it rules are looked up in the output of save."""
    wait: tuple[str, ...]
    restore_wait: tuple[str, ...]
    """Empty when restore cannot wait for the lock, so that the caller must hold it."""
    random_fully: bool
    nf_tables: bool = False
    """Rules go to nftables; the cost of a restore then grows with what is written, and faster than linearly."""


def find_programs(family: Family, variant: str = HOST_DEFAULT) -> Programs:
    """Return the names of the programs of one family and variant."""
    base = "iptables" if family is Family.IPV4 else "ip6tables"
    if variant:
        base = f"{base}-{variant}"
    return Programs(base, f"{base}-save", f"{base}-restore")


def probe_features(commands: Commands, names: Programs) -> Features:
    """Read the version of the installed programs; raises NotSupported when they are missing."""
    found = commands.run((names.edit, "--version"))
    match = _VERSION.search((found.stdout + found.stderr).decode(errors="replace"))
    if found.status != 0 or match is None:
        raise NotSupported(f"{names.edit} --version gave no version: {found.error_text or 'no output'}")
    version = tuple(int(part) for part in match[1].split("."))
    nf_tables = b"(nf_tables)" in found.stdout
    features = msgspec.structs.replace(find_features_of_version(version), nf_tables=nf_tables)
    if not features.restore_wait and _restore_reports_version(commands, names):
        features = msgspec.structs.replace(features, restore_wait=("--wait",))
    return features


def find_features_of_version(version: tuple[int, ...]) -> Features:
    """Return what a version of iptables can do."""
    interval = ("-W", "100000") if version < _INTERVAL_DEPRECATED else ()
    wait: tuple[str, ...] = ()
    if version >= _WAIT_INTERVAL:
        wait = ("-w", "5", *interval)
    elif version >= _WAIT_SECONDS:
        wait = ("-w", "5")
    elif version >= _WAIT:
        wait = ("-w",)
    return Features(
        version=version,
        check=version >= _CHECK,
        wait=wait,
        restore_wait=("-w", "5", *interval) if version >= _RESTORE_WAIT else (),
        random_fully=version >= _RANDOM_FULLY,
    )


def _restore_reports_version(commands: Commands, names: Programs) -> bool:
    """Return whether restore supports `--version`: distributions backported it together with `--wait`."""
    answer = commands.run((names.restore, "--version"), stdin=b"")
    return answer.status == 0 and _VERSION.search(answer.stdout.decode(errors="replace")) is not None


def choose_variant(
    commands: Commands,
    family: Family,
    *,
    environment: Mapping[str, str] = os.environ,
    proc: Path = Path("/proc"),
) -> str:
    """Return the variant that this host uses, by the rule in the module's docstring."""
    given = environment.get(OVERRIDE, "")
    if given in (NFT, LEGACY):
        return given
    if given:
        raise NotSupported(f"{OVERRIDE} is {given!r}: set it to {NFT} or {LEGACY}, or leave it unset")
    in_use = {NFT: _dump(commands, family, NFT)}
    if _has_legacy_tables(family, proc):
        in_use[LEGACY] = _dump(commands, family, LEGACY)
    for pattern in (_HINT_CHAIN, _PROXY_CHAIN):
        for variant, text in in_use.items():
            if pattern.search(text):
                return variant
    counts = {variant: len(_RULE.findall(text)) for variant, text in in_use.items()}
    if LEGACY in counts and counts[LEGACY] != counts[NFT]:
        return max(counts, key=lambda variant: counts[variant])
    return HOST_DEFAULT


def find_variants_in_use(family: Family, *, proc: Path = Path("/proc")) -> list[str]:
    """Return every variant that may hold rules, for clean-up."""
    return [NFT, LEGACY] if _has_legacy_tables(family, proc) else [NFT]


def _dump(commands: Commands, family: Family, variant: str) -> bytes:
    try:
        return commands.run((find_programs(family, variant).save,)).stdout
    except KernelError:
        return b""


def _has_legacy_tables(family: Family, proc: Path) -> bool:
    name = "ip_tables_names" if family is Family.IPV4 else "ip6_tables_names"
    try:
        return bool((proc / "net" / name).read_text().strip())
    except OSError:
        return False
