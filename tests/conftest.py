"""Plugins of the whole suite: coroutine functions are tests, and only listed reasons excuse a skipped test."""

from __future__ import annotations

import asyncio
import fnmatch
import inspect
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.fake import virtual_time

IN_CI = os.environ.get("CI") == "true"

# The speed of examples depends on the machine. `brief` is for `make quick`.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
settings.register_profile("brief", settings.get_profile("unhurried"), max_examples=15)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--check-skips",
        action="store_true",
        default=IN_CI,
        help="fail when a test is skipped for a reason that tests/allowed_skips.txt does not list; default in CI",
    )


def pytest_configure() -> None:
    """Handle SIGINT: shells ignore it for background jobs, and programs started here would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    run = virtual_time.run if pyfuncitem.get_closest_marker("virtual_time") else asyncio.run
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


def allowed_skips(text: str, *, in_ci: bool) -> list[str]:
    """Return the patterns of allowed_skips.txt that count here."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.removeprefix("local: ") for line in lines if not (in_ci and line.startswith("local: "))]


def forbidden_skips(reasons: set[str], patterns: list[str]) -> list[str]:
    return sorted(
        reason for reason in reasons if not any(fnmatch.fnmatchcase(reason, pattern) for pattern in patterns)
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not session.config.option.check_skips:
        return
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    reports = terminal.stats.get("skipped", ()) if terminal else ()
    reasons = {report.longrepr[2].removeprefix("Skipped: ") for report in reports}
    listed = Path(__file__).with_name("allowed_skips.txt").read_text()
    forbidden = forbidden_skips(reasons, allowed_skips(listed, in_ci=IN_CI))
    if forbidden:
        terminal.write_line("")
        for reason in forbidden:
            terminal.write_line(
                f"ERROR: skipped for a reason that tests/allowed_skips.txt does not list: {reason}", red=True
            )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
