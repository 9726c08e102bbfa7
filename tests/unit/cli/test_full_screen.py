"""Bytes from a terminal become keys."""

from __future__ import annotations

import pytest

from pointsman.cli.full_screen import parse_keys


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[5~\x1b[6~", ["page up", "page down"]),
        (b"\x1b", ["escape"]),
        (b"\x1bq", ["escape", "q"]),
        (b"\r\n", ["enter", "enter"]),
        (b"/we\x7f ", ["/", "w", "e", "backspace", " "]),
        ("ü".encode(), ["ü"]),
        (b"\x1b[200~x", ["x"]),
        (b"\x1b[1;5Cx", ["x"]),
        (b"\xff\x00", []),
    ],
)
def test_bytes_become_keys(data: bytes, keys: list[str]) -> None:
    assert parse_keys(data) == keys
