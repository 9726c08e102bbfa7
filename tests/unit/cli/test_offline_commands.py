"""render and explain on manifests: no root, no kernel, the same text every time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pointsman.cli.main import main

RECORDED = Path(__file__).parents[2] / "golden" / "data"
EVERYTHING = RECORDED / "everything"


def output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def manifests(directory: Path, *items: dict[str, Any]) -> Path:
    path = directory / "manifests.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


def node(name: str, address: str = "192.168.1.10") -> dict[str, Any]:
    addresses = [{"type": "InternalIP", "address": address}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"addresses": addresses},
    }


def service(name: str = "web", **spec: Any) -> dict[str, Any]:
    body = {"clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body}


@pytest.mark.parametrize(
    ("mode", "sign"),
    [
        ("nftables", "table ip kube-proxy {"),
        ("iptables", ":KUBE-SERVICES - [0:0]"),
        ("ipvs", "-A -t 10.96.20.9:80 -s rr"),
    ],
)
def test_render_does_not_depend_on_the_order_of_objects(
    mode: str, sign: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = json.loads((EVERYTHING / "objects.json").read_text())["items"]
    texts: set[str] = set()
    for seed in range(3):
        shuffled = random.Random(seed).sample(items, len(items))
        path = manifests(tmp_path, *shuffled)
        status, text, _ = output(["render", "--manifests", str(path), "--mode", mode, "--node", "n1"], capsys)
        assert status == 0
        texts.add(text)
    (text,) = texts
    assert sign in text
    assert text.startswith("# IPv4\n")
    assert "\n# IPv6\n" in text


def test_render_of_one_family_is_the_bare_rule_set(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["render", "--manifests", str(EVERYTHING / "objects.json"), "--node=n1", "--family=ipv6"]
    _, text, _ = output(arguments, capsys)
    assert text.startswith("table ip6 kube-proxy {")


def test_render_takes_the_flags_and_files_of_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(EVERYTHING / "objects.json")
    flags = ["--hostname-override", "n1", "--cluster-cidr", "10.9.0.0/16"]
    _, text, _ = output(["render", "--manifests", path, *flags], capsys)
    assert "ip saddr != 10.9.0.0/16" in text
    _, text, _ = output(["render", "--masquerade-all", "--manifests", path, *flags], capsys)
    assert "ip saddr != 10.9.0.0/16" not in text
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n"
        "clusterCIDR: 10.7.0.0/16\n"
    )
    _, text, _ = output(["render", "--manifests", path, "--node=n1", "--config", str(config)], capsys)
    assert "! -s 10.7.0.0/16" in text
    _, text, _ = output(
        ["render", "--manifests", path, "--node=n1", "--config", str(config), "--mode", "ipvs"], capsys
    )
    assert "# ipvsadm-save -n" in text


def test_a_given_mode_brings_its_own_defaults_beside_a_file_of_another_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"
    )
    base = ["render", "--manifests", str(EVERYTHING / "objects.json"), "--node=n1", "--mode=iptables"]
    _, alone, _ = output(base, capsys)
    _, beside, _ = output([*base, "--config", str(config)], capsys)
    assert beside == alone


def test_the_only_node_is_taken_and_several_must_be_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = manifests(tmp_path, node("only"), service())
    status, text, _ = output(["explain", "web", "--manifests", str(one)], capsys)
    assert "on node only" in text
    two = manifests(tmp_path, node("n1"), node("n2", "192.168.1.11"), service())
    status, _, errors = output(["render", "--manifests", str(two)], capsys)
    assert status == 2
    assert "--node (n1, n2)" in errors
    status, _, errors = output(["render", "--manifests", str(two), "--node", "n3"], capsys)
    assert status == 2
    assert "no Node n3 in the manifests (they hold n1, n2)" in errors


def piped(arguments: list[str], text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pointsman", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)


def test_manifests_come_from_several_places_and_from_standard_input(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    nodes, cart = manifests(first, node("n1")), manifests(second, service("cart", clusterIP="10.96.0.11"))
    objects = json.dumps({"kind": "List", "items": [service(), service("cart", clusterIP="10.96.0.12")]})
    done = piped(["render", "--manifests", str(nodes), "--manifests", str(cart), "--manifests", "-"], objects)
    assert done.returncode == 0, done
    assert '10.96.0.10 . tcp . 80 comment "default/web:http"' in done.stdout
    assert '10.96.0.11 . tcp . 80 comment "default/cart:http"' in done.stdout
    assert "10.96.0.12" not in done.stdout
    assert f"-: Service default/cart: already in {cart}, which counts" in done.stderr
    broken = piped(["explain", "web", "--manifests", "-"], "kind: [")
    assert broken.returncode == 2
    assert "standard input: " in broken.stderr


def test_unusable_objects_are_named_and_the_rest_is_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifests(
        tmp_path, node("n1"), service(), service("bad", clusterIP="10.96.0.11", externalIPs=["127.0.0.1"])
    )
    status, text, errors = output(["render", "--manifests", str(path)], capsys)
    assert status == 0
    assert "10.96.0.10 . tcp . 80" in text
    assert "default/bad" in errors
    assert "127.0.0.1" in errors


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("", "holds no Service"),
        ("a: [", "line 2"),
        ("kind: Pod", "holds no Service"),
    ],
)
def test_manifests_that_cannot_be_used(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.yaml"
    if content is not None:
        path.write_text(content)
    status, _, errors = output(["render", "--manifests", str(path)], capsys)
    assert status == 2
    assert words in errors


def test_bad_flags_are_refused_with_all_their_problems(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(EVERYTHING / "objects.json")
    status, _, errors = output(["render", "--manifests", path, "--cluster-cidr=x", "--node=n1"], capsys)
    assert status == 2
    assert "clusterCIDR" in errors
    with pytest.raises(SystemExit) as ended:
        main(["explain", "web", "--cluster-cidr", "10.0.0.0/8"])
    assert ended.value.code == 2
    assert "only with --manifests: --cluster-cidr 10.0.0.0/8" in capsys.readouterr().err


def test_explain_of_every_recorded_service_gives_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the objects look like: an answer, exit status 0 or 1, and never an exception."""
    scenarios = sorted(path for path in RECORDED.iterdir() if (path / "objects.json").exists())
    asked = 0
    for scenario in scenarios:
        items = json.loads((scenario / "objects.json").read_text())["items"]
        base = ["--manifests", str(scenario / "objects.json"), "--node", "n1", "-o", "json"]
        names = sorted({i["metadata"]["name"] for i in items if i["kind"] == "Service"})[:30]
        for mode in ("nftables", "iptables", "ipvs") if len(names) < 20 else ("nftables",):
            for name in names[:6]:
                status, text, _ = output(["explain", name, "--mode", mode, *base], capsys)
                document = json.loads(text)
                assert status in (0, 1)
                assert document["ports"] or document["findings"], (scenario.name, name)
                asked += 1
    assert asked > 200
