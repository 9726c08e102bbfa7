"""Runs the tests of `inside/` within one boot of User-mode Linux and reports each of them as if it had run here.

Inside, every test report is written to a file on the host's file system; outside, those reports are replayed. A
test without a report (the boot failed, Python died) is reported as failed, with the console.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.uml import boot

from pointsman.kernel.iptables_programs import LEGACY, NFT, OVERRIDE

HERE = Path(__file__).resolve().parent
INSIDE = HERE / "inside"
ROOT = HERE.parents[2]
BOOT_SECONDS = 1500
REPORT_VARIABLE = "POINTSMAN_UML_REPORT"
CHOOSE_VARIANT = f"export {OVERRIDE}=$(test -e /proc/net/ip_tables_names && echo {LEGACY} || echo {NFT})"
"""New kernels have no legacy tables, and that of User-mode Linux in Debian 12 has no nf_tables."""

_results = pytest.StashKey[dict[str, list[dict[str, Any]]]]()
_console = pytest.StashKey[str]()


def _runs_inside() -> bool:
    return REPORT_VARIABLE in os.environ


def _belongs_inside(item: pytest.Item) -> bool:
    return INSIDE in item.path.parents


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _belongs_inside(item):
            item.add_marker(pytest.mark.uml)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Boot before the first test, outside of any test's time limit."""
    items = [item for item in session.items if _belongs_inside(item)]
    if items and not _runs_inside() and not session.config.option.collectonly and boot.missing() is None:
        _boot_once(session.config, [item.nodeid for item in items])


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if _runs_inside() or not _belongs_inside(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class _ReportWriter:
    """Writes what the tests inside tell, for the pytest outside."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with Path(os.environ[REPORT_VARIABLE]).open("a") as file:
            file.write(json.dumps(data) + "\n")


def pytest_sessionstart(session: pytest.Session) -> None:
    if _runs_inside():
        session.config.pluginmanager.register(_ReportWriter(session.config))


def _reports(item: pytest.Item) -> Iterator[pytest.TestReport]:
    reason = boot.missing()
    if reason is not None:
        yield _made_up(item, "skipped", (str(item.path), 0, f"Skipped: {reason}"))
        return
    found = item.config.stash.get(_results, {}).get(item.nodeid)
    if not found:
        console = item.config.stash.get(_console, "User-mode Linux was not booted")
        yield _made_up(item, "failed", f"no report from User-mode Linux; its console:\n{console[-8000:]}")
        return
    for data in found:
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        if isinstance(report.longrepr, list):  # a skip's place and reason: JSON has no tuples
            report.longrepr = tuple(report.longrepr)
        yield report


def _made_up(item: pytest.Item, outcome: Any, longrepr: Any) -> pytest.TestReport:
    when: Any = "setup" if outcome == "skipped" else "call"
    return pytest.TestReport(item.nodeid, item.location, {item.name: 1}, outcome, longrepr, when)


def _boot_once(config: pytest.Config, nodeids: list[str]) -> None:
    """With pytest-xdist every worker comes here; the first one boots, the others wait for its reports."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    shared = Path(tempfile.gettempdir()) / f"pointsman-uml-{run}.jsonl"
    with (shared.with_suffix(".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            reports, console = _boot(nodeids)
            shared.write_text(json.dumps([reports, console]))
    reports, console = json.loads(shared.read_text())
    if run == str(os.getpid()):
        shared.unlink()
        shared.with_suffix(".lock").unlink()
    config.stash[_results], config.stash[_console] = reports, console


def _handed_down() -> str:
    """The settings of this run that count inside, too: measure coverage, and see what random tests saw once."""
    settings = (item for item in os.environ.items() if item[0].startswith(("COVERAGE_", "POINTSMAN_SEED")))
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings)


def _boot(nodeids: list[str]) -> tuple[dict[str, list[dict[str, Any]]], str]:
    with tempfile.TemporaryDirectory(prefix="pointsman-uml-tests-", dir="/var/tmp") as name:
        arguments, report_file = Path(name, "arguments"), Path(name, "reports")
        arguments.write_text("\n".join(nodeids))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--assert=plain",
            f"@{arguments}",
        ]
        script = (
            f"cd {shlex.quote(str(ROOT))}\n"
            f"export {REPORT_VARIABLE}={shlex.quote(str(report_file))}\n"
            f"{CHOOSE_VARIANT}\n"
            f"{_handed_down()}"
            f"{shlex.join(command)}\n"
        )
        try:
            _, console = boot.run(script, timeout=BOOT_SECONDS)
        except boot.BootError as error:
            console = str(error)
        reports: dict[str, list[dict[str, Any]]] = {}
        lines = report_file.read_text().splitlines() if report_file.exists() else []
        for line in lines:
            report = json.loads(line)
            reports.setdefault(report["nodeid"], []).append(report)
        return reports, console
