"""`pointsman cleanup` and `run --cleanup`: remove what a proxy put into the kernel, and report each object."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pointsman.backends.contract import CleanupItem, CleanupStatus
from pointsman.cli.arguments import add_output, create_parser
from pointsman.cli.output import ERROR, print_answer
from pointsman.files import RUN_DIRECTORY

_ABOUT = """Remove the rules, sets, virtual servers and devices that Pointsman made in any proxy mode, and restore the
kernel settings that it changed. Rules of kube-proxy stay unless --all-proxies is given. Can be repeated.

Refuses while a proxy serves this network namespace: Services would not answer until that proxy has restored its rules. Needs root."""


def build_parser() -> argparse.ArgumentParser:
    made = create_parser("cleanup", _ABOUT)
    exclusive = made.add_mutually_exclusive_group()
    exclusive.add_argument(
        "--dry-run", action="store_true", help="print what would be removed and restored, and change nothing"
    )
    exclusive.add_argument("--force", action="store_true", help="clean up even while a proxy is running")
    made.add_argument(
        "--all-proxies", action="store_true", help="also remove the rules of kube-proxy, in every mode"
    )
    add_output(made)
    made.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        default=RUN_DIRECTORY,
        help=f"where changed settings are recorded; default {RUN_DIRECTORY}",
    )
    return made


def main(argv: Sequence[str]) -> int:
    """Return exit status 0 when everything was removed, 1 when something could not be, 2 when refused."""
    from pointsman.machine.instance import find_proxy

    given = build_parser().parse_args(argv)
    running = "" if given.force else find_proxy()
    if running and given.dry_run:
        sys.stderr.write(
            f"pointsman cleanup: {running} is running: without --dry-run this would be refused\n"
        )
    elif running:
        sys.stderr.write(
            f"pointsman cleanup: {running} is running and serves this node: stop it first, or use --force\n"
        )
        return ERROR
    return _clean_up(given.state_dir, given, all_proxies=given.all_proxies, dry_run=given.dry_run)


def clean_up_like_kube_proxy(program: str, state_dir: Path, exclude_cidrs: Sequence[str] = ()) -> int:
    """Remove the rules of all proxies for the flag --cleanup, but no virtual servers in these ranges; a running proxy is only a warning, as with kube-proxy."""
    from pointsman.machine.instance import find_proxy

    if running := find_proxy():
        sys.stderr.write(f"{program}: warning: {running} is running and will restore its rules\n")
    return _clean_up(state_dir, all_proxies=True, dry_run=False, exclude_cidrs=exclude_cidrs)


def _clean_up(
    state_dir: Path,
    given: argparse.Namespace | None = None,
    *,
    all_proxies: bool,
    dry_run: bool,
    exclude_cidrs: Sequence[str] = (),
) -> int:
    from pointsman.app.modes import remove_everything

    if os.geteuid() != 0:
        sys.stderr.write("pointsman cleanup: reading and removing kernel rules needs root: use sudo\n")
        return ERROR
    items = remove_everything(
        state_dir, all_proxies=all_proxies, dry_run=dry_run, exclude_cidrs=exclude_cidrs
    )
    if given is not None and given.output != "text":
        print_answer(given, items, lambda _items, _screen: "")
        return 1 if any(item.status is CleanupStatus.FAILED for item in items) else 0
    for item in items:
        out = sys.stderr if item.status is CleanupStatus.FAILED else sys.stdout
        out.write(f"{render_item(item, dry_run=dry_run)}\n")
    if not items:
        sys.stdout.write("nothing to remove\n")
    return 1 if any(item.status is CleanupStatus.FAILED for item in items) else 0


_VERBS = {
    CleanupStatus.REMOVED: ("removed", "would remove"),
    CleanupStatus.RESTORED: ("restored", "would restore"),
    CleanupStatus.KEPT: ("kept", "would keep"),
    CleanupStatus.FAILED: ("pointsman: could not clean up", "pointsman: cannot clean up"),
}


def render_item(item: CleanupItem, *, dry_run: bool = False) -> str:
    """Return what was or would be done: `removed chain KUBE-SERVICES in iptables table nat`."""
    thing = f"{item.count} {item.kind}" if item.count else f"{item.kind} {item.name}".rstrip()
    where = f" in {item.where}" if item.where else ""
    why = f": {item.why}" if item.why else ""
    return f"{_VERBS[item.status][dry_run]} {thing}{where}{why}"
