"""What every test may use: a test that is a coroutine function runs in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
"""How fast examples are made and run says something about the machine, not about the program."""
settings.register_profile("brief", settings.get_profile("patient"), max_examples=15)
"""For `make quick`; a test that sets a number of its own keeps it."""


def pytest_configure() -> None:
    """Shells start background jobs with SIGINT ignored, and every program started here would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
