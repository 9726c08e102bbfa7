"""Changes to the host besides rules: settings at start, leftovers of other modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from pointsman.app import modes
from pointsman.backends.contract import CleanupStatus, Mode
from pointsman.conditions import Condition, ConditionBoard
from pointsman.config.options import RunOptions
from pointsman.errors import KernelError
from pointsman.kernel.sysctl import Sysctls
from pointsman.machine.resources import check_resources
from pointsman.machine.settings import apply_conntrack, apply_oom_score, count_cores
from pointsman.node.cleanup import CleanupResult
from pointsman.obs.log import configure, flush, get_log

_log = get_log(__name__)


class Host:
    """The machine this process runs on."""

    def __init__(self, state_dir: Path, root: Path = Path("/")) -> None:
        self._state_dir = state_dir
        self.sysctls = modes.open_sysctls(state_dir, root)
        """One for the whole process: it keeps in memory what cannot be written to the journal."""
        self._prepared: frozenset[str] = frozenset()

    def prepare(self, choice: modes.Choice) -> tuple[Condition, ...]:
        """Set sysctls, the OOM score and what the mode needs; for a thread, because modules may be loaded.

        Settings that were made here before are made again; those that backends make with their rules are kept.
        Failures are never fatal: they are among the conditions of `sysctls`, or returned.
        """
        config, sysctls = choice.setup.config, self.sysctls
        sysctls.forget_wanted(self._prepared)
        kept = sysctls.wanted
        apply_conntrack(config.conntrack, sysctls, count_cores())
        score = apply_oom_score(config.oom_score_adj)
        choice.mode.prepare(choice.setup, sysctls, choice.families)
        self._prepared = sysctls.wanted - kept
        return () if score is None else (score,)

    def check(self) -> Iterator[Condition]:
        """Restore settings that were changed externally, and yield what has run out; for a background thread."""
        self.sysctls.restore()
        yield from check_resources(self._state_dir)

    def remove_leftovers(self, mode: Mode, exclude_cidrs: Sequence[str]) -> CleanupResult:
        """Remove leftovers of other modes, but no virtual servers in these ranges."""
        done = modes.remove_leftovers(mode, self._state_dir, exclude_cidrs)
        for one in done:
            what = f"{one.count or one.name} {one.kind}"
            if one.status is CleanupStatus.FAILED:
                _log.error(
                    "Cannot remove a leftover of another proxy mode, will retry",
                    what=what,
                    where=one.where,
                    err=one.why,
                )
            else:
                _log.info(
                    "Leftover of another proxy mode", status=one.status.value, what=what, where=one.where
                )
        statuses = {one.status for one in done}
        if CleanupStatus.FAILED in statuses:
            return CleanupResult.UNFINISHED
        return CleanupResult.CHANGED if CleanupStatus.REMOVED in statuses else CleanupResult.NOTHING


class Attempt:
    """A start that puts kernel settings back if it fails before the proxy serves; a stop is no failure."""

    def __init__(self, sysctls: Sysctls) -> None:
        self.succeeded: Callable[[], bool] = lambda: False
        self._sysctls = sysctls
        self._before = sysctls.changes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None and not self.succeeded():
            self._sysctls.undo(keep=self._before)


def initialise(options: RunOptions) -> int:
    """Do what needs full privileges (sysctls, loading modules), for --init-only; return the exit status.

    A setting that cannot be made is no more fatal here than in the proxy that follows, which has a condition for it: in a
    nested node (kind, k3d) the size of the connection table cannot be changed, and Services work without.
    """
    configure(options.config.logging.to_settings())
    try:
        choice = modes.choose_mode(options)
    except KernelError as error:
        _log.error("Cannot run", err=error)
        flush()
        return 1
    sysctls = Host(options.paths.state_dir, options.paths.host_root).sysctls
    for setting in apply_conntrack(options.config.conntrack, sysctls, count_cores()):
        _log.info("Set", setting=setting)
    choice.mode.prepare(choice.setup, sysctls, choice.families)
    choice.mode.before_unprivileged(choice.setup, sysctls, choice.families)
    ConditionBoard().replace("kernel settings", sysctls.conditions())
    flush()
    return 0
