"""Lines and tables laid out for screens of any width."""

from __future__ import annotations

import re

import pytest

from pointsman.screen import PLAIN, Screen, Table, Tone, fit_rows, lay_out

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
    assert lay_out(LINES, PLAIN).splitlines() == list(LINES)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_screen_and_no_word_is_lost(width: int) -> None:
    shown = lay_out(LINES, Screen(colour=False, width=width))
    assert max(map(len, shown.splitlines())) <= width
    assert "".join(shown.split()) == "".join("".join(LINES).split())


@pytest.mark.parametrize("width", [70, 80, 200])
def test_a_table_wraps_between_the_words_of_its_cells(width: int) -> None:
    lines = lay_out([TABLE], Screen(colour=False, width=width)).splitlines()
    assert max(map(len, lines)) <= width
    words = [word for row in TABLE.rows for cell in row for word in cell.split()]
    assert sorted(word for line in lines for word in line.split()) == sorted(words)
    if width == 200:
        assert len(lines) == 3


def test_a_table_that_would_cut_words_becomes_records() -> None:
    table = Table([["SERVICE", "ADDRESS"], ["default/checkout", "10.96.0.11:443"], ["a", "b"]])
    assert lay_out([table], Screen(colour=False, width=28)).splitlines() == [
        "",
        "SERVICE  default/checkout",
        "ADDRESS  10.96.0.11:443",
        "",
        "SERVICE  a",
        "ADDRESS  b",
    ]


def test_optional_columns_are_left_out_in_order_where_there_is_no_room() -> None:
    rows = [["NAME", "TYPE", "POD"], ["web", "NodePort", "web-1"]]
    fitted = [fit_rows(rows, Screen(width=width), optional=(1, 2))[1].split() for width in (30, 18, 8)]
    assert fitted == [["web", "NodePort", "web-1"], ["web", "web-1"], ["web"]]


def test_fitted_rows_take_one_line_each_and_keep_their_indent() -> None:
    rows = [["NAME", "OPEN"], ["  2001:db8:1234::5", "12"]]
    assert fit_rows(rows, Screen(width=16), numbers={1}) == ["NAME        OPEN", "  2001:db…    12"]


def test_what_goes_on_stands_below_its_own_beginning() -> None:
    lines = lay_out(LINES[3:4], Screen(colour=False, width=60)).splitlines()
    assert lines[0].startswith("      -> start")
    assert all(line.startswith("         ") and line[9] != " " for line in lines[1:])


def test_colours_say_what_the_marks_say_and_change_nothing_else() -> None:
    shown = lay_out([*LINES, Table([["A", "B"], ["x", "down"]], {"down": Tone.BAD})], Screen(width=60))
    plain = lay_out([*LINES, Table([["A", "B"], ["x", "down"]])], Screen(colour=False, width=60))
    assert COLOURS.sub("", shown) == plain
    assert "\x1b[32m✓\x1b[0m shop/web" in shown
    assert "  \x1b[31m✗ NodeNameMismatch" in shown
    assert "\x1b[33m! degraded" in shown
    assert "\x1b[31mdown\x1b[0m" in shown
    assert "\x1b[1mA\x1b[0m" in shown


def test_what_comes_from_outside_cannot_paint() -> None:
    hostile = "\x1b[2J\nforged"
    shown = lay_out([hostile, Table([["A"], [hostile]])], Screen(width=60))
    assert COLOURS.sub("", shown).splitlines() == ["\\x1b[2J\\nforged", "A", "\\x1b[2J\\nforged"]
