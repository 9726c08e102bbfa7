"""The interactive `top`, key by key, without a terminal."""

from __future__ import annotations

import re

import pytest

from pointsman.explain.service_port import EndpointReport, FrontendReport, ServicePortReport, Traffic
from pointsman.model.decision import State
from pointsman.report.traffic import TrafficReport
from pointsman.report.traffic_view import Options, Request, TrafficView
from pointsman.screen import Screen

REVERSED = re.compile(r"\x1b\[7m(.*?)\x1b\[0m")
COLOURS = re.compile(r"\x1b\[\d+m")


def port(name: str, rate: float, opened: int, state: State = State.HEALTHY) -> ServicePortReport:
    address = f"10.244.1.{len(name)}:80"
    measured = Traffic(opened, rate, True, 1.0)
    endpoint = EndpointReport(address, "n1", True, True, pod=f"{name}-pod", traffic=measured)
    frontend = FrontendReport("ClusterIP", f"10.96.0.{len(name)}:80", "Cluster")
    return ServicePortReport(
        service=f"shop/{name}",
        port="http",
        protocol="TCP",
        family="IPv4",
        number=80,
        state=state,
        frontends=(frontend,),
        usable=1,
        total=1,
        local=1,
        endpoints=(endpoint,),
        traffic=measured,
    )


def report(*ports: ServicePortReport) -> TrafficReport:
    return TrafficReport("n1", "nftables", 2.0, ports, ("a note",))


PORTS = (port("web", 9, 1), port("cart", 5, 7), port("idle", 0, 0, State.DOWN))


def view() -> TrafficView:
    return TrafficView(report(*PORTS), Options())


def shown(made: TrafficView, width: int = 100, height: int = 12) -> list[str]:
    lines = made.render(Screen(width=width), height)
    assert len(lines) == height
    assert max(len(COLOURS.sub("", line)) for line in lines) <= width
    return lines


def services(made: TrafficView) -> list[str]:
    return re.findall(r"^(shop/\w+)", COLOURS.sub("", "\n".join(shown(made))), re.MULTILINE)


def press(made: TrafficView, *keys: str) -> Request | None:
    found = None
    for key in keys:
        found = made.press(key)
    return found


def selected(made: TrafficView, height: int = 12) -> str:
    (line,) = REVERSED.findall("\n".join(shown(made, height=height)))
    return str(line).split()[0].removesuffix(":http")


def test_the_order_changes_with_s_and_idle_services_can_be_hidden() -> None:
    made = view()
    assert services(made) == ["shop/web", "shop/cart", "shop/idle"]
    press(made, "s")
    assert services(made) == ["shop/cart", "shop/web", "shop/idle"]
    press(made, "s", "s")
    assert services(made)[0] == "shop/idle", "the worst state first"
    press(made, "s", "i")
    assert services(made) == ["shop/web", "shop/cart"]


@pytest.mark.parametrize(
    ("text", "found"), [("cart", "shop/cart"), ("idle-p", "shop/idle"), ("10.96.0.3", "shop/web")]
)
def test_a_filter_finds_names_pods_and_addresses(text: str, found: str) -> None:
    made = view()
    press(made, "/", *text, "x", "backspace", "enter")
    assert services(made) == [found]
    press(made, "escape")
    assert len(services(made)) == 3


def test_letters_of_a_filter_are_no_commands() -> None:
    made = view()
    assert press(made, "/", "q", "s") is None
    assert services(made) == []
    assert "Filter: qs_" in shown(made)[-1]
    press(made, "escape")
    assert services(made) == ["shop/web", "shop/cart", "shop/idle"]


def test_the_selection_stays_with_its_line_when_the_order_changes() -> None:
    made = view()
    assert selected(made) == "shop/web"
    press(made, "down", "down")
    assert selected(made) == "shop/cart"
    made.update(report(port("web", 1, 1), port("cart", 99, 7)))
    assert selected(made) == services(made)[0] == "shop/cart"
    press(made, "down")
    assert selected(made) == "10.244.1.4:80"
    assert made.selected is not None
    assert made.selected.service == "shop/cart"


def test_the_selected_line_is_always_on_the_screen() -> None:
    made = TrafficView(report(*(port(f"s{number:02}", 100 - number, 0) for number in range(30))), Options())
    for key, expected in (("page down", 37), ("end", 59), ("page up", 22), ("home", 0)):
        shown(made, height=40)
        press(made, key)
        assert selected(made, height=40) == (
            f"shop/s{expected // 2:02}" if expected % 2 == 0 else "10.244.1.3:80"
        )


def test_pausing_keeps_the_figures() -> None:
    made = view()
    press(made, " ")
    made.update(report())
    assert len(services(made)) == 3
    assert "paused" in shown(made)[0]
    press(made, " ")
    made.update(report())
    assert services(made) == []


def test_enter_asks_for_an_explanation_which_scrolls_until_escape() -> None:
    made = view()
    assert press(made, "enter") is Request.EXPLAIN
    made.open_text(
        "shop/web", lambda screen: "".join(f"line {number} of {screen.width}\n" for number in range(50))
    )
    assert shown(made)[1] == "line 0 of 100"
    press(made, "down", "page down")
    assert shown(made)[1].startswith("line 10 ")
    press(made, "end")
    assert shown(made)[-2].startswith("line 49 ")
    press(made, "escape")
    assert services(made)
    assert press(made, "q") is Request.QUIT


def test_help_names_every_key() -> None:
    made = view()
    press(made, "?")
    text = "\n".join(shown(made))
    for key in ("Enter", "Esc", "/", "space", "q", "page up"):
        assert f"\n{key} " in text or f", {key}" in text
    assert "! a note" in text
    assert all(len(line) <= 40 for line in shown(made, width=40, height=40))


def test_an_error_is_shown_until_there_are_figures_again() -> None:
    made = view()
    made.report_error("no proxy listens")
    assert "no proxy listens" in shown(made)[-1]
    assert services(made)
    made.update(report(*PORTS))
    assert "no proxy listens" not in shown(made)[-1]


@pytest.mark.parametrize(("width", "columns"), [(30, "OPEN"), (50, "STATE"), (60, "POD"), (200, "NODE")])
def test_columns_follow_the_width(width: int, columns: str) -> None:
    heading = COLOURS.sub("", shown(view(), width=width)[1])
    assert columns in heading
    assert ("NODE" in heading) is (width >= 100)


def test_a_terminal_without_room_is_no_error() -> None:
    assert len(view().render(Screen(width=1), 4)) == 4


def test_a_name_cannot_drive_the_terminal() -> None:
    made = TrafficView(report(port("w\x1b[2Jb", 1, 1)), Options())
    assert "\x1b[2J" not in "\n".join(shown(made))
