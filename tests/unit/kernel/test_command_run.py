"""Programs run with a time limit, without a shell, in the C locale."""

from __future__ import annotations

import pytest

from pointsman.errors import NotSupported
from pointsman.kernel.command import CommandTimeout, SystemCommands


def test_input_output_and_status_come_back() -> None:
    done = SystemCommands().run(["sh", "-c", "cat; echo oops >&2; exit 3"], stdin=b"hello")
    assert (done.status, done.stdout, done.error_text) == (3, b"hello", "oops")


def test_arguments_are_never_read_by_a_shell() -> None:
    assert SystemCommands().run(["echo", "$(id); `id`"]).stdout == b"$(id); `id`\n"


def test_a_missing_program_is_named() -> None:
    with pytest.raises(NotSupported, match="no-such-program is not installed"):
        SystemCommands().run(["no-such-program"])


def test_a_program_that_hangs_is_killed() -> None:
    with pytest.raises(CommandTimeout, match="sleep 60 did not finish"):
        SystemCommands().run(["sleep", "60"], timeout=0.05)


def test_a_killed_program_shows_its_signal() -> None:
    assert SystemCommands().run(["sh", "-c", "kill -9 $$"]).status == -9


def test_the_locale_is_fixed_and_system_directories_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    output = SystemCommands().run(["/usr/bin/env"]).stdout.decode()
    assert "LC_ALL=C\n" in output
    assert "LANG" not in output
    assert "PATH=/nowhere:" in output
    assert "/usr/sbin" in output


def test_a_program_that_may_not_be_run_is_an_error(tmp_path: object) -> None:
    with pytest.raises(Exception, match="cannot run /etc/hostname"):
        SystemCommands().run(["/etc/hostname"])
