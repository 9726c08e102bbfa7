"""The status page in a real browser: what it shows, and that nothing a cluster names can harm it."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import struct
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
from tests import factory
from tests.harness.waiting import wait_until
from tests.process.chromium import CHROMIUM, Browser, running_chromium
from tests.unit.cli.live_proxy import LiveProxy, live_proxy

from pointsman.conditions import Condition
from pointsman.errors import KernelError

HOSTILE = "<img src=x onerror=document.title='harmed'>"
NODE = factory.node("n1", addresses=[{"type": "InternalIP", "address": "192.168.1.10"}])


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveProxy]:
    objects: list[Any] = [NODE]
    for number in range(120):
        objects.append(factory.service(f"svc-{number:03}", clusterIP=f"10.96.1.{number + 1}"))
        objects.append(
            factory.endpoint_slice("10.244.1.5", name=f"s{number}", service_name=f"svc-{number:03}")
        )
    objects.append(
        factory.service(
            "edge",
            clusterIP="10.96.2.1",
            type="LoadBalancer",
            externalTrafficPolicy="Local",
            ports=[{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30443}],
            status={"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}},
        )
    )
    remote = {
        "addresses": ["10.244.2.9"],
        "nodeName": "n2",
        "targetRef": {"kind": "Pod", "name": "edge-pod-1"},
    }
    objects.append(factory.endpoint_slice(remote, name="edge-a", service_name="edge"))
    objects.append(factory.service(HOSTILE, clusterIP="10.96.2.2"))
    with live_proxy(tmp_path_factory.mktemp("page"), *objects) as running:
        running.raise_conditions(Condition.false("OOMScore", "NotPermitted", "not permitted"))
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with running_chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


def opened(
    browser: Browser, proxy: LiveProxy, search: str = "", *, width: int = 1280, dark: bool = False
) -> str:
    """What a reader sees once the page has its data."""
    browser.visit(f"{proxy.page_address}#{quote(search)}", width=width, dark=dark)
    browser.wait_for(
        "document.readyState === 'complete' && Boolean(document.getElementById('refreshed')?.textContent)"
    )
    return browser.text()


def test_the_page_shows_status_history_and_services(browser: Browser, proxy: LiveProxy) -> None:
    shown = opened(browser, proxy)
    assert "nftables mode on n1 in zone zone-a (192.168.1.10)" in shown
    assert "122 service ports" in shown
    assert "1 to 50 of 122" in shown
    assert browser.evaluate("document.querySelectorAll('tr.service').length") == 50
    assert browser.evaluate("document.querySelectorAll('svg.chart').length") == 1
    assert "No Services in IPv6" in shown
    assert browser.evaluate("document.querySelectorAll('rect.full').length") > 0


def test_nothing_is_green_where_something_is_degraded_or_down(browser: Browser, proxy: LiveProxy) -> None:
    shown = opened(browser, proxy)
    assert "OOMScore not permitted" in shown
    assert "1 of 122 service ports is down" in shown
    assert "1 of 122 service ports is partial (some clients fail)" in shown
    assert browser.evaluate("document.querySelectorAll('#conditions .healthy').length") == 0


def test_the_count_of_services_that_are_down_leads_to_them(browser: Browser, proxy: LiveProxy) -> None:
    opened(browser, proxy)
    browser.evaluate("document.querySelector('#conditions .failing a').click()")
    browser.wait_for("document.getElementById('found').textContent.startsWith('1 of')")
    assert "onerror" in browser.text()
    browser.wait_for("document.querySelector('.detail') !== null")


def test_searching_narrows_and_a_single_hit_opens_with_its_explanation_and_advice(
    browser: Browser, proxy: LiveProxy
) -> None:
    shown = opened(browser, proxy, "203.0.113.7")
    assert "1 of 122" in shown
    assert "NoLocalEndpoint" in shown
    assert "they run on n2" in shown
    assert "Cluster: in, ready; Local: out" in shown
    assert "partial" in shown
    assert "→ " in shown
    assert (
        browser.evaluate("document.querySelector('tr.service button').getAttribute('aria-expanded')")
        == "true"
    )


def test_columns_sort_both_ways(browser: Browser, proxy: LiveProxy) -> None:
    opened(browser, proxy)
    first = "document.querySelector('tr.service').dataset.service"
    for column, ways in {"state": ("onerror", "default/svc-"), "name": ("<img", "svc-119")}.items():
        for way, name in zip(("ascending", "descending"), ways, strict=True):
            browser.evaluate(f"document.querySelector('th.{column} button').click()")
            browser.wait_for(f"document.querySelector('th.{column}').getAttribute('aria-sort') === '{way}'")
            browser.wait_for(f"{first}.includes({json.dumps(name)})")


def test_names_are_text_and_never_markup(browser: Browser, proxy: LiveProxy) -> None:
    assert HOSTILE in opened(browser, proxy, "onerror")
    assert "<img" not in browser.markup()
    assert browser.evaluate("document.title") == "Pointsman on n1"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_a_telephone_and_a_screen(
    browser: Browser, proxy: LiveProxy, tmp_path: Path, width: int, dark: bool
) -> None:
    for search in ("", "203.0.113.7", "onerror"):
        opened(browser, proxy, search, width=width, dark=dark)
        assert browser.too_wide() == []
        picture = browser.screenshot(tmp_path / f"page-{search or 'all'}.png")
        assert struct.unpack(">I", picture[16:20]) == (width,)
    visible = "getComputedStyle(document.querySelector('td.state')).display !== 'none'"
    assert browser.evaluate(visible)
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == dark


def test_traffic_is_shown_per_service_and_endpoint_once_it_was_sampled(
    browser: Browser, proxy: LiveProxy
) -> None:
    opened(browser, proxy, "svc-007")
    proxy.traffic.bytes["default/svc-007"] += 1_000_000
    proxy.traffic.connections["default/svc-007", "10.244.1.5:8080"] += 1000
    proxy.traffic.open["default/svc-007", "10.244.1.5:8080"] = 3
    proxy.traffic.open["default/svc-007", "10.244.1.6:8080"] = 1
    browser.wait_for("document.querySelector('td.traffic .spark polyline') !== null")
    assert re.search(r"4 open", browser.text())
    browser.wait_for("document.querySelectorAll('.endpoint-list .share').length === 2")
    shown = browser.text()
    assert "removed, still has connections" in shown
    assert re.search(r"75 %|100 %", shown)


def test_a_page_that_is_not_asked_for_reads_no_kernel(tmp_path: Path) -> None:
    with live_proxy(tmp_path, NODE, factory.service()) as quiet:
        fetched(quiet, "/status.json")
        fetched(quiet, "/events.json")
        assert quiet.traffic.readings == 0
        page = json.loads(fetched(quiet, "/services.json").body)
        assert page["ports"][0]["traffic"] is None
        wait_until(lambda: json.loads(fetched(quiet, "/services.json").body)["ports"][0]["traffic"])
        quiet.traffic.failure = KernelError("no permission")
        wait_until(lambda: "no permission" in str(json.loads(fetched(quiet, "/services.json").body)["notes"]))


def test_several_rows_stay_open_and_the_focus_stays_while_the_page_refreshes(
    browser: Browser, proxy: LiveProxy
) -> None:
    opened(browser, proxy)
    for number in (1, 2):
        browser.evaluate(f"document.querySelectorAll('tr.service button')[{number}].click()")
    browser.wait_for("document.querySelectorAll('tr.detail').length === 2")
    browser.evaluate("document.querySelectorAll('tr.service button')[2].focus()")
    browser.evaluate("refresh().then(() => true)")
    assert browser.evaluate("document.querySelectorAll('tr.detail').length") == 2
    assert browser.evaluate("document.activeElement === document.querySelectorAll('tr.service button')[2]")


def test_the_timeline_is_filtered_by_service_and_says_when_it_broke(
    browser: Browser, proxy: LiveProxy
) -> None:
    proxy.put(factory.endpoint_slice(name="s42", service_name="svc-042"))
    opened(browser, proxy)
    browser.evaluate("filterEvents('svc-042')")
    (event,) = browser.evaluate("[...document.querySelectorAll('#events li')].map((one) => one.innerText)")
    assert re.search(r"\d\d:\d\d:\d\d", event)
    assert "Service Down default/svc-042" in event
    assert "1 removed (10.244.1.5); usable 1 -> 0" in event
    browser.evaluate("filterEvents('no such event')")
    assert "No event matches the filter" in browser.text()
    shown = opened(browser, proxy, "svc-042")
    assert re.search(r"down\s+since \d\d:\d\d:\d\d", shown), "the row itself says when it broke"
    assert browser.evaluate("document.querySelectorAll('.detail .finding').length") == 1, "it is open"
    proxy.put(factory.endpoint_slice("10.244.1.5", name="s42", service_name="svc-042"))


@pytest.mark.parametrize(
    ("search", "found"), [("10.244.2.9", "edge"), ("edge-pod", "edge"), ("30443", "edge")]
)
def test_endpoints_pods_and_node_ports_are_found(
    browser: Browser, proxy: LiveProxy, search: str, found: str
) -> None:
    opened(browser, proxy, search)
    assert browser.evaluate("document.querySelectorAll('tr.service').length") == 1
    assert found in browser.evaluate("document.querySelector('tr.service').innerText")


CONTROLS = "a[href], button, input, [tabindex]"
CONTRAST = """
(() => {
  const luminance = (rgb) => rgb.map((value) => value / 255).map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const found = numbers(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const weak = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility() || node.closest("script, style, noscript, :disabled, .hidden")) continue;
    const levels = [luminance(numbers(getComputedStyle(node).color).slice(0, 3)), luminance(ground(node))].sort((a, b) => b - a);
    const ratio = (levels[0] + 0.05) / (levels[1] + 0.05);
    if (ratio < 4.5) weak.push([node.textContent.slice(0, 30), node.className, ratio.toFixed(2)]);
  }
  return weak;
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_accessible(browser: Browser, proxy: LiveProxy, dark: bool) -> None:
    """Every control has a name and takes the focus, headings have an order, text has enough contrast."""
    opened(browser, proxy, "203.0.113.7", dark=dark)
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    roles = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    ]
    controls = {
        "button",
        "link",
        "textbox",
        "searchbox",
        "columnheader",
        "img",
        "table",
        "navigation",
        "search",
    }
    assert [role for role, name in roles if role in controls - {"search", "table"} and not name.strip()] == []
    assert sum(role in ("button", "link", "searchbox") for role, _ in roles) >= 10
    levels = browser.evaluate(
        "[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert browser.evaluate("document.documentElement.lang") == "en"
    assert browser.evaluate(CONTRAST) == []
    assert (
        browser.evaluate(
            f"[...document.querySelectorAll('{CONTROLS}')].filter((one) => one.tabIndex < 0).length"
        )
        == 0
    )


def test_rows_are_opened_with_the_keyboard(browser: Browser, proxy: LiveProxy) -> None:
    opened(browser, proxy)
    browser.evaluate("document.querySelector('tr.service button').focus()")
    for kind in ("rawKeyDown", "char", "keyUp"):
        browser.command(
            "Input.dispatchKeyEvent",
            type=kind,
            key="Enter",
            code="Enter",
            text="\r",
            windowsVirtualKeyCode=13,
        )
    browser.wait_for("document.querySelector('tr.detail') !== null")


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes


def fetched(proxy: LiveProxy, path: str, host: str = "") -> Answer:
    connection = http.client.HTTPConnection(urlsplit(proxy.page_address).netloc, timeout=20)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return Answer(answer.status, answer.headers, body)


def test_everything_is_inline_and_the_policy_allows_nothing_else(proxy: LiveProxy) -> None:
    answer = fetched(proxy, "/")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    body = answer.body.decode()
    assert not re.search(r'(?:src|href)="(?:https?:)?//', body)
    assert "innerHTML" not in body


def test_a_foreign_host_name_reads_nothing(proxy: LiveProxy) -> None:
    """DNS rebinding: a page elsewhere lets its own name point at this port."""
    for path in (
        "/status.json",
        "/services.json",
        "/explain.json?target=edge",
        "/events.json",
        "/traffic.json",
    ):
        assert fetched(proxy, path).status == 200
        assert fetched(proxy, path, host="evil.example:10249").status == 403
        assert fetched(proxy, path, host="localhost:10249").status == 200


def test_pages_of_services_are_limited(proxy: LiveProxy) -> None:
    page = json.loads(fetched(proxy, "/services.json?limit=100000&offset=-1").body)
    assert len(page["ports"]) == 122
    page = json.loads(fetched(proxy, "/services.json?limit=10&offset=115").body)
    assert (len(page["ports"]), page["found"]) == (7, 122)
    assert fetched(proxy, "/explain.json?target=").status == 400
