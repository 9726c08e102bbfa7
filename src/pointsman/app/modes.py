"""Choice of the proxy mode, its backends, and removal of what modes left in the kernel."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from pointsman.backends import mode_named
from pointsman.backends.contract import CleanupContext, CleanupItem, CleanupStatus, Mode, Setup
from pointsman.config.defaults import with_mode
from pointsman.config.mode_table import BY_PREFERENCE, MODES
from pointsman.config.options import RunOptions
from pointsman.errors import Busy, KernelError, NotSupported
from pointsman.kernel.sysctl import Sysctls, Undone
from pointsman.machine.host_facts import detect_families
from pointsman.model.addresses import Family
from pointsman.obs.log import get_log

_MAX_ATTEMPTS: Final = 3
_RETRY_SECONDS: Final = 0.5
_CAP_NET_ADMIN: Final = 12
_NO_SUCH_FAMILY: Final = "it is switched off in this network namespace, or missing in the kernel"

_log = get_log(__name__)


class Choice(NamedTuple):
    """A mode that can run on this machine."""

    mode: Mode
    why: str
    setup: Setup
    families: tuple[Family, ...]
    """Those it can serve here."""
    refused: Mapping[Family, str]
    """The others, and why."""


def has_net_admin() -> bool:
    """Return whether this process has CAP_NET_ADMIN."""
    capabilities = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return capabilities is None or bool(int(capabilities[1], 16) >> _CAP_NET_ADMIN & 1)


def choose_mode(
    options: RunOptions,
    *,
    find_mode: Callable[[str], Mode] = mode_named,
    families: Sequence[Family] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Choice:
    """Return the mode to run; raises NotSupported, with what is missing, when none can run here."""
    configured = options.config.mode
    available = detect_families() if families is None else families
    refusals: list[str] = []
    for name in (configured,) if configured else BY_PREFERENCE:
        mode = find_mode(name)
        setup = build_setup(options, name)
        missing = {family: _find_missing(mode, setup, family, sleep) for family in available}
        able = tuple(family for family, problem in missing.items() if not problem)
        if able:
            refused = {family: problem for family, problem in missing.items() if problem}
            for family, problem in refused.items():
                _log.warning("IP family not supported", ipFamily=family.value, err=problem)
            absent = {family: _NO_SUCH_FAMILY for family in Family if family not in available}
            return Choice(mode, _explain_choice(options, name, refusals), setup, able, refused | absent)
        refusals.append(f"mode {name} cannot be used here: {'; '.join(dict.fromkeys(missing.values()))}")
    if not has_net_admin():
        raise NotSupported("not permitted to program the kernel: run as root, or with CAP_NET_ADMIN")
    raise NotSupported(". ".join(refusals))


def build_setup(options: RunOptions, mode: str) -> Setup:
    return Setup(with_mode(options.config, mode), options.service_metrics)


def _find_missing(mode: Mode, setup: Setup, family: Family, sleep: Callable[[float], None]) -> str:
    """Return what is missing. After repeated temporary errors nothing is assumed to be: failing syncs would show it."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return "; ".join(mode.preflight(setup, family))
        except Busy:
            return ""  # in use by another process, so it exists
        except KernelError as error:
            if not error.is_temporary:
                return str(error)
            _log.warning("Cannot read the features of the kernel, retrying", ipFamily=family.value, err=error)
        sleep(_RETRY_SECONDS)
    return ""


def _explain_choice(options: RunOptions, mode: str, refusals: Iterable[str]) -> str:
    if options.mode_explicit:
        return "configured"
    if options.config.mode:
        return f"{options.program}'s default"
    return ". ".join((f"no mode configured and the kernel can do {mode}", *refusals))


def open_sysctls(state_dir: Path, root: Path = Path("/")) -> Sysctls:
    return Sysctls(root, journal=state_dir / "sysctls.json")


def remove_leftovers(running: Mode, state_dir: Path, exclude_cidrs: Sequence[str] = ()) -> list[CleanupItem]:
    """Remove leftovers of other modes; kernel settings stay, the running mode may need them.

    Modes share chains: those of the running one stay, and what only others have goes. kube-proxy leaves it, and with
    it rules that reject traffic for services which have endpoints by now.
    """
    cleaning = CleanupContext(
        open_sysctls(state_dir), detect_families(), running.chains, exclude_cidrs=exclude_cidrs
    )
    return list(_clean_up((name for name in reversed(MODES) if name != running.name), cleaning))


def remove_everything(
    state_dir: Path,
    *,
    all_proxies: bool = True,
    dry_run: bool = False,
    exclude_cidrs: Sequence[str] = (),
) -> list[CleanupItem]:
    """Remove what any mode left, with `all_proxies` also kube-proxy's, and restore kernel settings.

    A dry run changes nothing and returns what would be done.
    """
    sysctls = open_sysctls(state_dir)
    settings = map(_describe_setting, sysctls.undo(dry_run=dry_run))
    cleaning = CleanupContext(
        sysctls, detect_families(), all_proxies=all_proxies, dry_run=dry_run, exclude_cidrs=exclude_cidrs
    )
    return [*settings, *_clean_up(reversed(MODES), cleaning)]


def _clean_up(names: Iterable[str], cleaning: CleanupContext) -> Iterator[CleanupItem]:
    """Clean up each mode, whether or not others fail. In a dry run a mode skips chains that one before it would remove."""
    for name in names:
        mode = mode_named(name)
        try:
            for item in mode.cleanup(cleaning):
                if cleaning.dry_run and item.status is CleanupStatus.REMOVED:
                    cleaning = msgspec.structs.replace(cleaning, keep=mode.chains)
                yield item
        except KernelError as error:
            yield CleanupItem("leftovers of mode", name, status=CleanupStatus.FAILED, why=str(error))


def _describe_setting(undone: Undone) -> CleanupItem:
    status, why = CleanupStatus.RESTORED, f"from {undone.change.after} to {undone.change.before}"
    if undone.found is None:
        status, why = CleanupStatus.KEPT, "there is no such setting any more"
    elif undone.taken:
        status, why = CleanupStatus.KEPT, f"it was changed externally to {undone.found}"
    elif undone.error:
        status, why = CleanupStatus.FAILED, f"cannot set it back to {undone.change.before}: {undone.error}"
    return CleanupItem("kernel setting", undone.name, status=status, why=why)
