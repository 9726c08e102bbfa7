"""Lines and tables laid out for screens of any width."""

from __future__ import annotations

import re

import pytest

from pointsman.screen import PLAIN, Screen, Table, Tone, laid_out

COLOURS = re.compile(r"\x1b\[\d+m")
LINES = (
    "shop/cache on node node-a",
    "✓ shop/web:http TCP 80 (IPv4) answers everybody that asks it from anywhere, on every address it has",
    "  ✗ NodeNameMismatch: endpoints run on a node by another name than this proxy calls its own, so none is local",
    "      -> start the proxy with --hostname-override=node-a.example.org and look whether nodeName matches exactly",
    "! degraded: oom_score_adj: the kernel said no to that, which is nothing that keeps packets from flowing",
)
TABLE = Table(
    [
        ["FAMILY", "LAST SYNC", "TOOK", "PENDING", "SERVICE PORTS", "ENDPOINTS", "SYNCS", "REPAIRED"],
        ["IPv4", "12m30s ago", "123.4 ms", "0", "10000", "100000", "1234", "0"],
        ["IPv6", "never", "-", "0", "1", "1", "0", "0"],
    ]
)


def test_without_a_width_every_line_stays_whole() -> None:
    assert laid_out(LINES, PLAIN).splitlines() == list(LINES)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_screen_and_no_word_is_lost(width: int) -> None:
    shown = laid_out(LINES, Screen(colour=False, width=width))
    assert max(map(len, shown.splitlines())) <= width
    assert "".join(shown.split()) == "".join("".join(LINES).split())


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_a_table_wraps_inside_its_cells(width: int) -> None:
    lines = laid_out([TABLE], Screen(colour=False, width=width)).splitlines()
    assert max(map(len, lines)) <= width
    assert sorted("".join(lines).replace(" ", "")) == sorted(
        "".join(cell for row in TABLE.rows for cell in row).replace(" ", "")
    )
    if width == 200:
        assert len(lines) == 3


def test_names_and_addresses_break_after_punctuation_before_they_break_anywhere() -> None:
    table = Table([["SERVICE", "ADDRESS"], ["default/checkout", "10.96.0.11:443"]])
    assert laid_out([table], Screen(colour=False, width=20)).splitlines() == [
        "SERVICE  ADDRESS",
        "default/ 10.96.0.11:",
        "checkout 443",
    ]
    assert laid_out([Table([["A"], ["abcdefgh/i"]])], Screen(colour=False, width=3)).split() == [
        "A",
        "abc",
        "def",
        "gh/",
        "i",
    ]


def test_what_goes_on_stands_below_its_own_beginning() -> None:
    lines = laid_out(LINES[3:4], Screen(colour=False, width=60)).splitlines()
    assert lines[0].startswith("      -> start")
    assert all(line.startswith("         ") and line[9] != " " for line in lines[1:])


def test_colours_say_what_the_marks_say_and_change_nothing_else() -> None:
    shown = laid_out([*LINES, Table([["A", "B"], ["x", "down"]], {"down": Tone.BAD})], Screen(width=60))
    plain = laid_out([*LINES, Table([["A", "B"], ["x", "down"]])], Screen(colour=False, width=60))
    assert COLOURS.sub("", shown) == plain
    assert "\x1b[32m✓\x1b[0m shop/web" in shown
    assert "  \x1b[31m✗ NodeNameMismatch" in shown
    assert "\x1b[33m! degraded" in shown
    assert "\x1b[31mdown\x1b[0m" in shown
    assert "\x1b[1mA\x1b[0m" in shown


def test_what_comes_from_outside_cannot_paint() -> None:
    hostile = "\x1b[2J\nforged"
    shown = laid_out([hostile, Table([["A"], [hostile]])], Screen(width=60))
    assert COLOURS.sub("", shown).splitlines() == ["\\x1b[2J\\nforged", "A", "\\x1b[2J\\nforged"]
