"""The status page in a real browser: what it shows, and that nothing a cluster names can harm it."""

from __future__ import annotations

import html
import http.client
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
from tests import factory
from tests.unit.cli.live_proxy import LiveProxy, live_proxy

from pointsman.kernel.sysctl import Degraded

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = "<img src=x onerror=document.title='harmed'>"
NODE = factory.node("n1", addresses=[{"type": "InternalIP", "address": "192.168.1.10"}])

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


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
            status={"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}},
        )
    )
    remote = {"addresses": ["10.244.2.9"], "nodeName": "n2"}
    objects.append(factory.endpoint_slice(remote, name="edge-a", service_name="edge"))
    objects.append(factory.service(HOSTILE, clusterIP="10.96.2.2"))
    with live_proxy(tmp_path_factory.mktemp("page"), *objects) as running:
        running.degrade(Degraded("oom_score_adj", "not permitted"))
        yield running


def browse(proxy: LiveProxy, directory: Path, fragment: str, *options: str) -> str:
    """The document after its scripts have run."""
    assert CHROMIUM is not None
    answer = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={directory}", "--virtual-time-budget=4000", "--dump-dom", *options),
            f"{proxy.page_address}#{quote(fragment)}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def text_of(document: str) -> str:
    """What a reader sees, scripts and styles left out."""
    bare = re.sub(r"<(script|style)>.*?</\1>", "", document, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", bare))


@needs_chromium
def test_the_page_shows_status_history_and_services(proxy: LiveProxy, tmp_path: Path) -> None:
    document = browse(proxy, tmp_path, "")
    shown = text_of(document)
    assert "nftables mode on n1 in zone zone-a (192.168.1.10)" in shown
    assert "122 service ports" in shown
    assert "1 to 50 of 122" in shown
    assert "oom_score_adj: not permitted" in shown
    assert len(re.findall(r'<tr class="service"', document)) == 50
    assert document.count('<svg class="chart"') == 2
    assert re.search(r'<rect [^>]*class="full"', document)


@needs_chromium
def test_searching_narrows_and_a_single_hit_opens_with_its_explanation(
    proxy: LiveProxy, tmp_path: Path
) -> None:
    shown = text_of(browse(proxy, tmp_path, "203.0.113.7"))
    assert "1 of 122" in shown
    assert "NoLocalEndpoint" in shown
    assert "they run on n2" in shown
    assert "Cluster: in, ready; Local: out" in shown
    assert "partly" in shown


@needs_chromium
def test_names_are_text_and_never_markup(proxy: LiveProxy, tmp_path: Path) -> None:
    document = browse(proxy, tmp_path, "onerror")
    assert HOSTILE in text_of(document.replace(html.escape(HOSTILE, quote=False), html.escape(HOSTILE)))
    assert "<img" not in document
    assert "<title>Pointsman on n1</title>" in document


@needs_chromium
def test_the_page_can_be_drawn(proxy: LiveProxy, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse(proxy, tmp_path / "profile", "", f"--screenshot={picture}", "--window-size=1200,900")
    header = picture.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert struct.unpack(">II", header[16:24]) == (1200, 900)


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
    for path in ("/status.json", "/services.json", "/explain.json?target=edge"):
        assert fetched(proxy, path).status == 200
        assert fetched(proxy, path, host="evil.example:10249").status == 403
        assert fetched(proxy, path, host="localhost:10249").status == 200


def test_pages_of_services_are_limited(proxy: LiveProxy) -> None:
    page = json.loads(fetched(proxy, "/services.json?limit=100000&offset=-1").body)
    assert len(page["rows"]) == 122
    page = json.loads(fetched(proxy, "/services.json?limit=10&offset=115").body)
    assert (len(page["rows"]), page["found"]) == (7, 122)
    assert fetched(proxy, "/explain.json?target=").status == 400
