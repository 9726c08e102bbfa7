from __future__ import annotations

import pytest

from pointsman.lab.picture import compute_median_milliseconds, find_path_through_table, render_answers
from pointsman.lab.probe import Kind, Outcome
from pointsman.screen import Screen, draw_bar

PLAIN = Screen(colour=False)
LISTING = """\
table ip kube-proxy {
    map service-ips {
        type ipv4_addr . inet_proto . inet_service : verdict
        elements = { 10.96.1.1 . tcp . 80 : goto lb-2,
                 10.96.1.10 . tcp . 80 : goto lb-3 }
    }

    map endpoints {
        elements = { 10.96.1.1 . tcp . 80 . 0 : 10.244.1.11 . 8080,
                 10.96.1.1 . tcp . 80 . 1 : 10.244.2.14 . 8080,
                 10.96.1.10 . tcp . 80 . 0 : 10.244.1.12 . 8080 }
    }

    chain lb-2 {
        comment "two endpoints"
        dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints
    }

    chain lb-3 {
        counter
    }
}
""".replace("    ", "\t")


@pytest.mark.parametrize(("share", "filled"), [(0.0, 0), (0.5, 14), (1.0, 28)])
def test_bar_is_as_long_as_its_share_and_always_as_wide(share: float, filled: int) -> None:
    for screen in (PLAIN, Screen(colour=False, unicode=False)):
        drawn = draw_bar(share, screen)
        assert len(drawn) == 28
        assert len(drawn.rstrip()) == filled


def test_bars_name_who_answered_whom_they_saw_and_what_failed() -> None:
    outcomes = [
        Outcome(Kind.ANSWERED, "pod1", "10.244.1.13", 0.002),
        Outcome(Kind.ANSWERED, "pod1", "10.244.1.1", 0.001),
        Outcome(Kind.ANSWERED, "pod1", "192.0.2.7", 0.003),
        Outcome(Kind.TIMED_OUT, seconds=1.0),
    ]
    lines = render_answers(outcomes, PLAIN, ("pod2",))
    assert "pod1 on n1" in lines[0]
    assert "3   75%" in lines[0]
    assert "10.244.1.13 (pod3)" in lines[0]
    assert "10.244.1.1 (node n1)" in lines[0]
    assert "192.0.2.7" in lines[0]
    assert "no connections" in lines[1]
    assert lines[2] == "1 timed out"
    assert compute_median_milliseconds(outcomes) == 2.0


def test_no_outcomes_draw_empty_bars() -> None:
    assert "0%" in render_answers([], PLAIN, ("pod1",))[0]
    assert compute_median_milliseconds([]) == 0.0


def test_colours_only_where_asked_for() -> None:
    outcomes = [Outcome(Kind.ANSWERED, "pod1", "10.244.1.13")]
    assert "\x1b[" in render_answers(outcomes, Screen())[0]
    assert "\x1b[" not in render_answers(outcomes, PLAIN)[0]


def test_box_drawing_has_a_plain_form() -> None:
    assert Screen(unicode=False).to_plain("──┴│") == "--+|"
    assert PLAIN.to_plain("──┴│") == "──┴│"


def test_path_shows_the_elements_of_one_address_and_the_chains_they_lead_to() -> None:
    assert find_path_through_table(LISTING, "10.96.1.1") == [
        "map service-ips",
        "    10.96.1.1 . tcp . 80 : goto lb-2",
        "map endpoints",
        "    10.96.1.1 . tcp . 80 . 0 : 10.244.1.11 . 8080",
        "    10.96.1.1 . tcp . 80 . 1 : 10.244.2.14 . 8080",
        "chain lb-2",
        "    dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints",
    ]
