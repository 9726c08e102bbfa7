"""`pointsman simulate` as a user calls it, with the cluster of the documentation and a served one."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from tests.fake.apiserver import FakeApiServer

from pointsman.cli import kubectl_plugin
from pointsman.cli.main import main

EXAMPLE = str(Path(__file__).parents[3] / "docs/examples/zones")


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["simulate", "--manifests", EXAMPLE, *arguments]) == status
    return capsys.readouterr().out


def test_the_traffic_of_a_cluster_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys)
    assert "4 Services, 6 nodes in 3 zones; clients equal per node" in shown
    assert "shop/gateway:https (IPv4)  external  healthy" in shown


def test_one_service_is_shown_with_its_endpoints(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "gateway", "-n", "shop")
    assert "gateway-1" in shown
    assert "shop/db" not in shown


def test_a_change_that_takes_a_service_down_fails(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "--remove", "zone/b", status=1)
    assert "healthy -> down" in shown
    assert "✗ Result: 1 service port down" in shown


def test_a_limit_that_is_exceeded_fails(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "--max-cross-zone", "40", "--max-skew", "1.2", status=1)
    assert "the limit is 40%" in shown
    assert "is above the limit of 1.2" in shown


def test_the_answer_is_data_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "-o", "json", "--scale", "shop/gateway=6", "gateway"))
    assert answer["changed"]["nodes"] == 6
    assert {change["after"]["service"] for change in answer["changes"]} == {"gateway"}


@pytest.mark.parametrize("change", [(), ("--remove", "node/a1")])
def test_the_picture_is_one_well_formed_file(
    capsys: pytest.CaptureFixture[str], change: tuple[str, ...]
) -> None:
    picture = ET.fromstring(run(capsys, "-o", "svg", *change))
    titles = [
        text.text for text in picture.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "title"
    ]
    assert titles == (["Now", "After the change"] if change else ["Now"])


def test_the_page_loads_nothing_and_escapes_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    added = tmp_path / "node.yaml"
    zone = {"topology.kubernetes.io/zone": "<script>alert(1)</script>"}
    added.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x1", "labels": zone}})
    )
    page = run(capsys, "-o", "html", "--apply", str(added))
    assert "<script" not in page
    assert not any(reference in page for reference in (' src="', ' href="', "url(", "@import"))


async def test_kubectl_simulates_the_cluster_of_its_context(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two contexts: one of a cluster that answers, and the current one, where no server listens."""
    kubeconfig = tmp_path / "config"
    async with FakeApiServer() as server:
        for document in yaml.safe_load_all((Path(EXAMPLE) / "cluster.yaml").read_text()):
            server.add(document)
        servers = {"other": "http://127.0.0.1:9", "zones": server.url}
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "current-context": "other",
                    "clusters": [{"name": name, "cluster": {"server": url}} for name, url in servers.items()],
                    "users": [{"name": "u", "user": {}}],
                    "contexts": [
                        {"name": name, "context": {"cluster": name, "user": "u"}} for name in servers
                    ],
                }
            )
        )
        access = [f"--kubeconfig={kubeconfig}", "--context=zones"]
        asked = [*access, "simulate", "--remove", "zone/b"]
        status = await asyncio.to_thread(kubectl_plugin.main, asked)
    listed = capsys.readouterr().out
    assert status == 1
    assert "shop/db:postgres (IPv4)    internal  healthy -> down" in listed
    assert listed == run(capsys, "--remove", "zone/b", status=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--clients", "/nonexistent"), "must be nodes, pods or a file"),
        (("nothing",), "no Service matches"),
        (("--scale", "shop/wbe=2"), "no Service shop/wbe, did you mean shop/web?"),
        (("--apply", "/nonexistent"), "/nonexistent"),
    ],
)
def test_what_cannot_be_simulated_is_told(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(["simulate", "--manifests", EXAMPLE, *arguments]) == 2
    assert message in capsys.readouterr().err
