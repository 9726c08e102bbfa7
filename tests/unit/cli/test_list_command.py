"""`pointsman list`: offline, from a running proxy, and while it changes, on a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests import factory
from tests.process.terminal import on_terminal, terminal
from tests.unit.cli.live_proxy import LiveProxy, live_proxy

from pointsman.cli.main import main

SHOP = ["--manifests", str(Path(__file__).parents[3] / "docs/examples/shop"), "--node", "node-a"]
NODE = factory.node("n1", addresses=[{"type": "InternalIP", "address": "192.168.1.10"}])
OLDER = {"creationTimestamp": "2020-01-01T00:00:00Z"}
YOUNGER = {"creationTimestamp": "2021-01-01T00:00:00Z"}
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[LiveProxy]:
    with live_proxy(
        tmp_path,
        NODE,
        factory.service(metadata={"labels": {"app": "web", "tier": "front"}, **OLDER}),
        factory.endpoint_slice("10.244.1.5", "10.244.1.6"),
        factory.service("empty", namespace="shop", clusterIP="10.96.0.11"),
        factory.service("twin", namespace="shop", clusterIP="10.96.0.10", metadata=YOUNGER),
    ) as running:
        yield running


def rows(arguments: list[str], capsys: Captured) -> list[list[str]]:
    """The cells of the table that the command prints, without the heading."""
    main(["list", *arguments])
    return [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()[1:]]


def test_offline_it_lists_every_service_port_with_its_state(capsys: Captured) -> None:
    assert rows(SHOP, capsys)[:3] == [
        [
            "shop/admin",
            "LoadBalancer",
            "https/TCP",
            "10.96.0.25:443",
            "203.0.113.81",
            "30444",
            "1/1",
            "Cluster",
            "healthy",
        ],
        ["shop/api", "ClusterIP", "grpc/TCP", "10.96.0.21:9000", "-", "-", "0/2", "Cluster", "down"],
        ["shop/cache", "ClusterIP", "redis/TCP", "10.96.0.24:6379", "-", "-", "0/1", "Local", "down"],
    ]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_wide_never_breaks_a_word_and_leaves_out_empty_columns(columns: int) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("list", "-o", "wide", *SHOP, columns=columns))
    assert max(map(len, shown.splitlines())) <= columns
    assert {"LoadBalancer", "10.96.0.23:443", "shop/search", "partial"} <= set(shown.split())
    assert "AFFINITY" not in shown


def test_columns_can_be_chosen_as_with_kubectl(capsys: Captured) -> None:
    chosen = "custom-columns=NAME:.service,AT:{.endpoints[*].address},FIRST:.frontends[0].kind,ODD:.none"
    assert rows(["web", "-o", chosen, *SHOP], capsys) == [
        ["shop/web", "10.244.1.20:8080, 10.244.2.20:8080", "ClusterIP", "-"]
    ]
    assert main(["list", "web", "-o", "custom-columns=NAME", *SHOP]) == 2
    assert "write HEADING:.FIELD" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["svc/web", "service/web", "shop/services/web", "shop/web"])
def test_names_are_taken_as_kubectl_takes_them(name: str, capsys: Captured) -> None:
    assert main(["list", "-A", "--no-headers", "-o", "custom-columns=N:.service", name, *SHOP]) == 0
    assert capsys.readouterr().out == "shop/web\n"


def test_offline_the_flags_of_the_proxy_decide_how_services_are_balanced(capsys: Captured) -> None:
    flags = ["--proxy-mode=nftables", "--default-scheduler=least-connections"]
    main(["list", "web", "-o", "json", *SHOP, *flags])
    listed = json.loads(capsys.readouterr().out)["ports"]
    assert {row["scheduler"] for row in listed} == {"least-connections"}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["web"], ["shop/web"]),
        (["c*"], ["shop/cache", "shop/cart"]),
        (["shop/*", "-n", "shop", "--state", "partial"], ["shop/edge"]),
        (["-n", "other"], []),
        (["?dge", "web"], ["shop/edge", "shop/web"]),
        (["--state", "healthy", "--state", "partial"], ["shop/admin", "shop/edge", "shop/web"]),
        (["a*", "--sort-by", "state"], ["shop/api", "shop/admin"]),
        (["--state", "healthy", "--sort-by", "endpoints"], ["shop/web", "shop/admin"]),
        (["a*", "cart", "--sort-by", "unused"], ["shop/api", "shop/admin", "shop/cart"]),
        (["web", "admin", "--sort-by", "port"], ["shop/web", "shop/admin"]),
    ],
)
def test_what_is_listed_can_be_chosen_and_sorted(
    arguments: list[str], found: list[str], capsys: Captured
) -> None:
    assert main(["list", "-o", "name", *arguments, *SHOP]) == (0 if found else 1)
    printed = capsys.readouterr()
    assert printed.out.split() == found
    assert ("no Service matches" in printed.err) is not bool(found)


@pytest.mark.parametrize("form", ["name", "json", "yaml", "wide"])
def test_a_name_cannot_drive_the_terminal_in_any_format(form: str, tmp_path: Path, capsys: Captured) -> None:
    """No API server stores such a name; a file may hold it."""
    name = "w\x1b[2J\x9b\x7f\x85\u202eb"
    spec = {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}
    document = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    (tmp_path / "odd.json").write_text(json.dumps(document), encoding="utf-8")
    assert main(["list", "-o", form, "--manifests", str(tmp_path), "--node", "n1"]) == 0
    printed = capsys.readouterr().out
    assert not [c for c in printed if not c.isprintable() and c != "\n"]
    if form in ("json", "yaml"):
        assert yaml.safe_load(printed)["ports"][0]["service"] == f"default/{name}"


@pytest.mark.parametrize(
    ("selector", "found"),
    [("app=web", ["default/web"]), ("tier", ["default/web"]), ("app!=web", ["shop/empty", "shop/twin"])],
)
def test_labels_select_in_the_running_proxy(
    selector: str, found: list[str], proxy: LiveProxy, capsys: Captured
) -> None:
    assert main(["list", "-o", "name", "-l", selector, *proxy.arguments]) == 0
    assert capsys.readouterr().out.split() == found


def test_the_running_proxy_lists_also_what_it_cannot_serve(proxy: LiveProxy, capsys: Captured) -> None:
    assert rows(proxy.arguments, capsys) == [
        ["default/web", "ClusterIP", "http/TCP", "10.96.0.10:80", "2/2", "Cluster", "healthy"],
        ["shop/empty", "ClusterIP", "http/TCP", "10.96.0.11:80", "0/0", "Cluster", "down"],
        ["shop/twin", "ClusterIP", "http/TCP", "10.96.0.10:80", "0/0", "-", "down"],
    ]
    assert main(["list", "twin", "-o", "json", *proxy.arguments]) == 0
    assert json.loads(capsys.readouterr().out)["ports"][0]["findings"][0]["code"] == "NotPlanned"


def test_json_and_yaml_name_the_endpoints(proxy: LiveProxy, capsys: Captured) -> None:
    main(["list", "web", "-o", "json", *proxy.arguments])
    document = json.loads(capsys.readouterr().out)
    assert [(entry["address"], entry["used"]) for entry in document["ports"][0]["endpoints"]] == [
        ("10.244.1.5:8080", True),
        ("10.244.1.6:8080", True),
    ]
    main(["list", "web", "-o", "yaml", *proxy.arguments])
    assert yaml.safe_load(capsys.readouterr().out) == document
    main(["list", "web", "-o", "wide", *proxy.arguments])
    assert "10.244.1.5:8080, 10.244.1.6:8080" in capsys.readouterr().out


def test_the_kernel_is_not_read_for_a_list(proxy: LiveProxy, capsys: Captured) -> None:
    syncs = len(proxy.backend.requests)
    proxy.backend.programmed.clear()
    assert main(["list", *proxy.arguments]) == 0
    assert "healthy" in capsys.readouterr().out
    assert len(proxy.backend.requests) == syncs


def test_a_refused_service_is_down(proxy: LiveProxy, capsys: Captured) -> None:
    proxy.backend.refuse = {factory.service_port("bad").name: "Invalid argument"}
    proxy.put(
        factory.service("bad", clusterIP="10.96.0.66"),
        factory.endpoint_slice("10.244.1.7", name="bad-1", service_name="bad"),
    )
    assert rows(["bad", *proxy.arguments], capsys)[0][4:] == ["1/1", "Cluster", "down"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-l", "app in web"], "cannot understand the selector 'app in web'"),
        (["-w", *SHOP], "cannot be used with --manifests"),
        (["-w", "-o", "yaml"], "--watch cannot be used with -o yaml"),
        (["--cluster-cidr=10.0.0.0/8"], "only with --manifests"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], complaint: str, capsys: Captured) -> None:
    try:
        status = main(["list", *arguments])
    except SystemExit as refused:
        status = int(str(refused.code))
    assert status == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_a_list_fits_the_terminal(columns: int) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("list", *SHOP, columns=columns))
    assert max(map(len, shown.splitlines())) <= columns
    assert "partial" in shown


def test_watching_lists_what_changes_until_interrupted(proxy: LiveProxy) -> None:
    with terminal("list", "-w", *proxy.arguments, columns=100) as shown:
        shown.read(lambda text: "shop/twin" in text)
        proxy.put(
            factory.service("late", namespace="shop", clusterIP="10.96.0.12"),
            factory.endpoint_slice("10.244.1.9", namespace="shop", name="late-1", service_name="late"),
        )
        text = shown.read(lambda text: "shop/late" in text)
        _, _, later = text.partition("shop/twin")
        assert "\x1b[32mhealthy" in later
        assert "default/web" not in later
        lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
        heading, line = lines[0], next(line for line in lines if "shop/late" in line)
        assert re.match(r"\d\d:\d\d:\d\d  shop/late ", line)
        assert line[heading.index("STATE") :] in ("healthy", "down", "partial")
        shown.press(b"\x03")
        assert "Traceback" not in shown.read()
        assert shown.process.wait(10) == 130
