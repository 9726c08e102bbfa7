"""Exit statuses mean the same in every command, and flags without effect are rejected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import factory
from tests.unit.cli.live_proxy import live_proxy

from pointsman.cli.arguments import EXIT_STATUSES
from pointsman.cli.main import SUBCOMMANDS, main

ROOT = Path(__file__).parents[3]
SHOP = f"--manifests={ROOT / 'docs/examples/shop'}"
LIVE = (("status",), ("list",), ("explain", "web"), ("trace", "web"), ("verify",), ("top",), ("events",))


def run(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_the_table_of_the_docs_is_that_of_the_commands() -> None:
    rows = re.findall(
        r"^\| `([a-z ]+)` \| (.*?) \| (.*?) \| (.*?) \|$",
        (ROOT / "docs/commands.md").read_text().partition("## Exit statuses")[2].partition("\n## ")[0],
        re.MULTILINE,
    )
    documented = {name: tuple(meaning for meaning in meanings if meaning) for name, *meanings in rows}
    assert documented == EXIT_STATUSES


def test_every_command_has_a_row_and_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert EXIT_STATUSES.keys() - {"kubectl pointsman"} == set(SUBCOMMANDS)
    for name in SUBCOMMANDS.keys() - {"run"}:
        assert run(name, "--help") == 0
        shown = " ".join(capsys.readouterr().out.split())
        for status, meaning in enumerate(EXIT_STATUSES[name]):
            assert f"{status} {meaning}" in shown


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS.keys() - {"run", "check"}))
def test_wrong_arguments_are_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--no-such-flag") == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("name", ["run", "check"])
def test_an_invalid_configuration_is_1(name: str) -> None:
    assert run(name, "--no-such-flag") == 1


@pytest.mark.parametrize("command", LIVE)
def test_no_proxy_is_2(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert run(*command, f"--control-socket={tmp_path}/none.sock") == 2
    assert "no proxy runs here" in capsys.readouterr().err


def test_good_and_not_good_are_0_and_1(tmp_path: Path) -> None:
    node = factory.node("n1", addresses=[{"type": "InternalIP", "address": "192.168.1.10"}])
    with live_proxy(tmp_path, node, factory.service(), factory.endpoint_slice("10.244.1.5")) as proxy:
        assert run("list", *proxy.arguments) == 0
        assert run("list", "no-such", *proxy.arguments) == 1
        assert run("explain", "no-such", *proxy.arguments) == 1
        assert run("status", *proxy.arguments) == 0
    assert run("explain", "shop/web", SHOP, "--node=node-a") == 0
    assert run("explain", "shop/api", SHOP, "--node=node-a") == 1
    assert run("render", SHOP, "--node=node-a") == 0
    assert run("render", f"--manifests={tmp_path}/none") == 2
    assert run("check") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--node=a"), "only with --manifests: --node"),
        (("list", "--family=ipv4"), "only with --manifests: --family"),
        (("explain", "web", "--mode=ipvs"), "only with --manifests: --mode"),
        (
            ("explain", "web", "--node=a", "--cluster-cidr=10.0.0.0/8"),
            "--manifests: --node --cluster-cidr=10.0.0.0/8",
        ),
        (("explain", "web", "--probe-seconds=5"), "only with --probe: --probe-seconds"),
        (("explain", "web", SHOP, "--no-kernel"), "not with --manifests: --no-kernel"),
        (("list", SHOP, "--control-socket=/x"), "not with --manifests: --control-socket"),
        (("version", "raw", "-o", "json"), "not with -o json: raw"),
        (("render", SHOP, "-o", "json"), "only with --diff: --output"),
        (("top", "--once", "--count=3"), "not allowed with argument --once"),
        (("cleanup", "--dry-run", "--force"), "not allowed with argument --dry-run"),
    ],
)
def test_a_flag_without_effect_is_rejected(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
