"""Completion scripts and man pages hold every command and flag, and shells and man readers take them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts.release import manual
from tests import factory
from tests.unit.cli.live_proxy import LiveProxy, live_proxy

from pointsman.cli.completion import SHELLS, find_words
from pointsman.cli.main import SUBCOMMANDS, main
from pointsman.cli.surface import describe_kube_proxy, list_commands
from pointsman.config.flags import BY_NAME, FLAGS


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("completions")
    for shell, made in SHELLS.items():
        (directory / shell).write_text(made)
    return directory


def _needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed; scripts/packages installs it")
    return found


def _run(*command: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done
    assert done.stderr == "", done
    return done.stdout


def test_the_surface_knows_every_command_and_flag() -> None:
    assert [each.name for each in list_commands()] == list(SUBCOMMANDS)
    assert {f"--{flag.name}" for flag in FLAGS} <= {n for o in describe_kube_proxy().options for n in o.names}


def _find(*typed: str) -> list[str]:
    return [word for word, _ in find_words(typed)]


def test_every_command_and_flag_is_offered() -> None:
    assert set(_find("pointsman", "")) >= set(SUBCOMMANDS)
    for each in (*list_commands(), describe_kube_proxy()):
        program = [each.name] if each.name == "kube-proxy" else ["pointsman", each.name]
        assert set(_find(*program, "-")) == {name for option in each.all_options for name in option.names}


@pytest.mark.parametrize("shell", list(SHELLS))
def test_the_shell_accepts_its_script(shell: str, scripts: Path) -> None:
    assert _run(_needs(shell), "-n", str(scripts / shell)) == ""


def _bash_completes(scripts: Path, *words: str) -> list[str]:
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_pointsman; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return _run("bash", "-c", script, "bash", str(scripts / "bash"), *words).split()


def test_bash_completes_commands_flags_and_values(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").touch()
    assert _bash_completes(scripts, "pointsman", "exp") == ["explain"]
    assert "--from" in _bash_completes(scripts, "pointsman", "explain", "--f")
    assert "--cluster-cidr" in _bash_completes(scripts, "pointsman", "explain", "--clu")
    assert _bash_completes(scripts, "pointsman", "render", "--mode", "nft") == ["nftables"]
    assert _bash_completes(scripts, "pointsman", "render", "--mode", "=", "ipt") == ["iptables"]
    assert _bash_completes(scripts, "pointsman", "render", "--mode", "=") == ["nftables", "ipvs", "iptables"]
    assert _bash_completes(scripts, "pointsman", "check", "--str") == ["--strict"]
    assert _bash_completes(scripts, "pointsman", "completion", "z") == ["zsh"]
    assert _bash_completes(scripts, "kube-proxy", "--proxy-m") == ["--proxy-mode"]
    files = _bash_completes(scripts, "pointsman", "render", "--manifests", f"{tmp_path}/cl")
    assert files == [f"{tmp_path}/cluster.yaml"]


def test_no_name_of_a_service_is_run_by_bash(scripts: Path, tmp_path: Path) -> None:
    script = (
        "pointsman() { printf '%s\\n' shop/web 'shop/`touch \"$TRAP\"`' 'shop/$(touch \"$TRAP\")'; }\n"
        'source "$1"; COMP_WORDS=(pointsman explain shop/w); COMP_CWORD=2; TRAP=$2; _pointsman; echo "${COMPREPLY[0]}"'
    )
    assert _run("bash", "-c", script, "bash", str(scripts / "bash"), str(tmp_path / "trap")) == "shop/web\n"
    assert not (tmp_path / "trap").exists()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveProxy]:
    pods: list[Any] = [
        {"addresses": [f"10.244.1.{number}"], "targetRef": {"kind": "Pod", "name": f"web-{number}"}}
        for number in (2, 1)
    ]
    with live_proxy(
        tmp_path_factory.mktemp("completed"),
        factory.node("n1", addresses=[{"type": "InternalIP", "address": "192.168.1.10"}]),
        factory.service("api"),
        factory.service("web", "shop", clusterIP="10.96.0.11"),
        factory.endpoint_slice(*pods, service_name="web", namespace="shop"),
        factory.service("$(touch trap)", "shop", clusterIP="10.96.0.12"),
    ) as running:
        yield running


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["list", "-n", ""], ["default", "shop"]),
        (["explain", "web", "--from", ""], ["pod", "node", "outside", "web-1", "web-2"]),
        (["explain", "web", "--from=we"], ["--from=web-1", "--from=web-2"]),
        (["top", "shop/"], ["shop/web"]),
        (["trace", "-n", "s"], ["shop"]),
        (["list", "-o", ""], ["text", "json", "yaml", "wide", "name", "custom-columns="]),
        (["nonsense", ""], []),
    ],
)
def test_namespaces_clients_and_services_come_from_the_proxy(
    typed: list[str], offered: list[str], proxy: LiveProxy
) -> None:
    command, *rest = typed
    assert _find("pointsman", command, *proxy.arguments, *rest) == offered


def test_fish_completes_commands_flags_and_values(scripts: Path) -> None:
    fish = _needs("fish")

    def completes(line: str) -> list[str]:
        shown = _run(fish, "--no-config", "-c", f"source {scripts / 'fish'}; complete -C '{line}'")
        return [offered.split("\t")[0] for offered in shown.splitlines()]

    assert completes("pointsman exp") == ["explain"]
    assert "--from" in completes("pointsman explain --fr")
    assert completes("pointsman render --mode nft") == ["nftables"]
    assert "--cluster-cidr" in completes("kube-proxy --cluster-c")


@pytest.mark.parametrize(
    "prepared", ["autoload -Uz compinit; compinit -u -D; ", ""], ids=["compinit", "plain"]
)
def test_zsh_completes_a_script_that_was_sourced(prepared: str, scripts: Path) -> None:
    zsh = _needs("zsh")
    probe = (
        "zmodload zsh/zpty; zpty shell zsh -f; "
        f"zpty -w shell 'PS1=; {prepared}source <(cat {scripts / 'zsh'}); "
        'bindkey "^I" complete-word; print RE""ADY\'; '
        'zpty -r shell text "*READY*"; '
        "zpty -n -w shell $'pointsman expl\\t --no-k\\t'; "
        'zpty -r shell text "*--no-kernel*" && print -r -- "$text"'
    )
    shown = _run(zsh, "-f", "-c", probe)
    assert "explain" in shown
    assert "--no-kernel" in shown


def test_the_completion_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == SHELLS["bash"]


def test_every_command_and_flag_is_in_its_man_page(tmp_path: Path) -> None:
    assert manual.main([str(tmp_path)]) == 0
    overview = (tmp_path / "pointsman.8").read_text()
    for each in list_commands():
        assert f"pointsman {each.name}" in overview.replace("\\-", "-")
        page = (tmp_path / f"pointsman-{each.name}.8").read_text().replace("\\-", "-")
        for option in (*each.options, *each.arguments):
            assert all(f"\\fB{name}\\fR" in page for name in option.names)
            assert option.value in page
    page = (tmp_path / "kube-proxy.8").read_text().replace("\\-", "-")
    assert all(f"\\fB--{name}\\fR" in page for name in BY_NAME)


def test_man_pages_are_the_same_every_time_and_name_no_date() -> None:
    assert manual.build_pages() == manual.build_pages()
    assert not re.search(r"\b20\d\d\b", "".join(manual.build_pages().values()))


def test_a_reader_of_man_pages_finds_nothing_wrong(tmp_path: Path) -> None:
    mandoc = _needs("mandoc")
    manual.main([str(tmp_path)])
    done = subprocess.run(
        [mandoc, "-T", "lint", "-W", "warning", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [line for line in done.stdout.splitlines() if "missing date" not in line]
    assert complaints == []


def test_the_generator_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert manual.main([]) == 2
    assert "usage: python -m scripts.release.manual DIR" in capsys.readouterr().err
