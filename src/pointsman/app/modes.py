"""Proxy modes as the process sees them: which one to use, how to build its backends, how to remove its traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pointsman.backends import mode_named
from pointsman.backends.contract import Backend, CleanupContext, CleanupItem, CleanupStatus, Mode, Setup
from pointsman.config.defaults import with_mode
from pointsman.config.mode_table import BY_PREFERENCE, MODES
from pointsman.config.options import RunOptions
from pointsman.errors import Busy, KernelError, NotSupported
from pointsman.kernel.sysctl import Sysctls, Undone
from pointsman.machine.own_addresses import kernel_families
from pointsman.model.addresses import Family
from pointsman.obs.log import get_log

_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.5
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


def choose(
    options: RunOptions,
    *,
    find_mode: Callable[[str], Mode] = mode_named,
    families: Sequence[Family] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Choice:
    """The mode to run; raises NotSupported, saying what stands in the way, when none can."""
    configured = options.config.mode
    spoken = kernel_families() if families is None else families
    refusals: list[str] = []
    for name in (configured,) if configured else BY_PREFERENCE:
        mode = find_mode(name)
        setup = setup_of(options, name)
        missing = {family: _missing(mode, setup, family, pause) for family in spoken}
        able = tuple(family for family, problem in missing.items() if not problem)
        if able:
            refused = {family: problem for family, problem in missing.items() if problem}
            for family, problem in refused.items():
                _log.warning("This family cannot be served", ipFamily=family.value, err=problem)
            unspoken = {family: _NO_SUCH_FAMILY for family in Family if family not in spoken}
            return Choice(mode, _why(options, name, refusals), setup, able, refused | unspoken)
        refusals.append(f"mode {name} cannot be used here: {'; '.join(dict.fromkeys(missing.values()))}")
    raise NotSupported(". ".join(refusals))


def setup_of(options: RunOptions, mode: str) -> Setup:
    return Setup(with_mode(options.config, mode), options.service_metrics)


def _missing(mode: Mode, setup: Setup, family: Family, pause: Callable[[float], None]) -> str:
    """What stands in the way. A kernel that cannot say for now is believed to have it all: syncs are tried again, and tell."""
    for _ in range(_ATTEMPTS):
        try:
            return "; ".join(mode.preflight(setup, family))
        except Busy:
            return ""  # somebody else uses it just now, so it is there
        except KernelError as error:
            if not error.is_temporary:
                return str(error)
            _log.warning("The kernel cannot say what it has; asking again", ipFamily=family.value, err=error)
        pause(_PAUSE_SECONDS)
    return ""


def _why(options: RunOptions, mode: str, refusals: Iterable[str]) -> str:
    if options.mode_explicit:
        return "configured"
    if options.config.mode:
        return f"{options.program}'s default"
    return ". ".join((f"no mode configured and the kernel can do {mode}", *refusals))


def make_backends(choice: Choice, sysctls: Sysctls) -> dict[Family, Backend]:
    """A backend per family; the host must have been prepared."""
    return {family: choice.mode.backend(choice.setup, family, sysctls) for family in choice.families}


def sysctl_journal(state_dir: Path, root: Path = Path("/")) -> Sysctls:
    return Sysctls(root, journal=state_dir / "sysctls.json")


def remove_leftovers(running: Mode, state_dir: Path) -> list[CleanupItem]:
    """Remove what other modes left behind; kernel settings stay, the running mode may need them.

    Modes share chains: those of the running one stay, and what only others have goes. kube-proxy leaves it, and with
    it rules that reject traffic for services which have endpoints by now.
    """
    cleaning = CleanupContext(sysctl_journal(state_dir), kernel_families(), running.chains)
    return list(_cleaned((name for name in reversed(MODES) if name != running.name), cleaning))


def remove_everything(state_dir: Path) -> list[CleanupItem]:
    """Remove the traces of every mode, ours or kube-proxy's, and put kernel settings back."""
    sysctls = sysctl_journal(state_dir)
    settings = [_setting(undone) for undone in sysctls.undo()]
    return [*settings, *_cleaned(reversed(MODES), CleanupContext(sysctls, kernel_families()))]


def _cleaned(names: Iterable[str], cleaning: CleanupContext) -> Iterator[CleanupItem]:
    """Each mode is cleaned up after, whatever the others meet."""
    for name in names:
        try:
            yield from mode_named(name).cleanup(cleaning)
        except KernelError as error:
            yield CleanupItem("traces of mode", name, status=CleanupStatus.FAILED, why=str(error))


def _setting(undone: Undone) -> CleanupItem:
    status, why = CleanupStatus.RESTORED, f"from {undone.change.after} to {undone.change.before}"
    if undone.found is None:
        status, why = CleanupStatus.KEPT, "there is no such setting any more"
    elif undone.taken:
        status, why = CleanupStatus.KEPT, f"somebody else set it to {undone.found}"
    elif undone.error:
        status, why = CleanupStatus.FAILED, f"cannot set it back to {undone.change.before}: {undone.error}"
    return CleanupItem("kernel setting", undone.name, status=status, why=why)
