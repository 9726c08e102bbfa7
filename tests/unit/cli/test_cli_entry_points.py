"""Sub-commands, and what `run` and `check` do before anything runs."""

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.config_file import config_from_bytes

from pointsman import __version__
from pointsman.cli import check, main, run
from pointsman.config.options import RunOptions

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
Captured = pytest.CaptureFixture[str]


def test_version_names_the_surface(capsys: Captured) -> None:
    assert main.main(["version"]) == 0
    assert capsys.readouterr().out == f"Pointsman {__version__} (kube-proxy v1.37 compatible)\n"


@pytest.mark.parametrize("style", ["raw", "--raw"])
def test_raw_version_has_details(style: str, capsys: Captured) -> None:
    assert main.main(["version", style]) == 0
    assert "python: " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["version", "--version"])
def test_the_version_for_programs(name: str, capsys: Captured) -> None:
    assert main.main([name, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pointsman"] == __version__


def test_unknown_subcommand_suggests_the_nearest(capsys: Captured) -> None:
    assert main.main(["explian"]) == 2
    assert "unknown sub-command explian, did you mean explain?" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["help"], 0), (["--help"], 0)])
def test_usage_lists_the_subcommands(argv: list[str], status: int, capsys: Captured) -> None:
    assert main.main(argv) == status
    assert "  run " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"), [("list", "usage: pointsman list"), ("run", "pointsman run [flags]")]
)
def test_help_of_a_subcommand_may_be_asked_for_by_name(name: str, words: str, capsys: Captured) -> None:
    with contextlib.suppress(SystemExit):
        main.main(["help", name])
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["explain", "web", "--form", "pod"], "unrecognized arguments: --form, did you mean --from? pod"),
        (["list", "--manifest=x"], "unrecognized arguments: --manifest=x, did you mean --manifests?"),
        (["render", "--manifests", "x", "--cluster-cdr=y"], "--cluster-cdr=y, did you mean --cluster-cidr?"),
        (["status", "surplus"], "unrecognized arguments: surplus\n"),
    ],
)
def test_an_unknown_flag_suggests_the_nearest(argv: list[str], complaint: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(argv)
    assert complaint in capsys.readouterr().err


def test_check_prints_the_effective_configuration(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEADER + "mode: nftables\nclusterCidr: x\n")
    assert main.main(["check", f"--config={file}", "--masquerade-all"]) == 0
    printed = capsys.readouterr()
    assert config_from_bytes(printed.out.encode()).node_port_addresses == ("primary",)
    assert "pointsman: warning: flag --masquerade-all is ignored" in printed.err
    assert "did you mean clusterCIDR?" in printed.err


def test_check_says_when_the_mode_is_open(capsys: Captured) -> None:
    assert check.main([]) == 0
    assert capsys.readouterr().out.startswith("# mode is empty")


def test_check_lists_all_problems_and_fails(capsys: Captured) -> None:
    assert check.main(["--oom-score-adj=5000", "--conntrack-min=-1"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("Invalid value") == 2
    assert printed.err.endswith("pointsman: 2 problems found; nothing was changed\n")


def test_check_lists_warnings_beside_problems(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: none\nunheardOf: 1\n"
    )
    assert check.main([f"--config={file}"]) == 1
    errors = capsys.readouterr().err
    assert "warning: " in errors
    assert "unheardOf" in errors
    assert "1 problem found" in errors


@pytest.mark.parametrize("arguments", [["-o", "json"], ["--output=json"]])
def test_check_gives_findings_and_the_configuration_as_data(
    arguments: list[str], tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\nunheardOf: 1\n"
    )
    assert check.main([f"--config={file}", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["configuration"]["mode"] == "ipvs"
    assert "unheardOf" in report["warnings"][0]
    assert check.main([f"--config={file}", "--strict", *arguments]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["configuration"], len(report["errors"])) == (None, 1)


def test_check_has_help_of_its_own(capsys: Captured) -> None:
    assert check.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "Nothing is run or changed" in " ".join(shown.split())
    assert "--strict" in shown
    assert "--cluster-cidr" in shown


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("clusterCidr: x\n", 'unknown field "KubeProxyConfiguration.clusterCidr" is ignored'),
        ("mode: nftables\nmode: nftables\n", 'field "mode" is given more than once'),
    ],
)
def test_a_strict_check_fails_for_what_is_otherwise_a_warning(
    line: str, problem: str, tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEADER + line)
    assert check.main([f"--config={file}"]) == 0
    assert f"warning: {problem}" in capsys.readouterr().err
    assert check.main([f"--config={file}", "--strict"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, f"refused by --strict: {problem}" in printed.err) == ("", True)


@pytest.mark.parametrize("flag", ["--mode=ipvs", "--proxy-mode=ipvs"])
def test_the_mode_has_one_flag_with_two_names_in_every_command(flag: str, capsys: Captured) -> None:
    assert check.main([flag]) == 0
    assert "mode: ipvs" in capsys.readouterr().out
    manifests = str(Path(__file__).parents[3] / "docs/examples/shop")
    for command in ("render", "explain"):
        target = ["shop/web"] if command == "explain" else []
        assert main.main([command, *target, "--manifests", manifests, "--node=node-a", flag]) == 0
        assert re.search("ipvs mode|-A -t 10", capsys.readouterr().out)


def test_prepare_returns_options_when_there_is_something_to_run() -> None:
    options = run.parse_options(["--proxy-mode=ipvs"], program="kube-proxy")
    assert isinstance(options, RunOptions)
    assert options.config.mode == "ipvs"


@pytest.mark.parametrize(
    ("argv", "words"), [(["--help"], "Usage:\n  kube-proxy [flags]"), (["--version"], "Pointsman")]
)
def test_help_and_version_end_with_success(argv: list[str], words: str, capsys: Captured) -> None:
    assert run.parse_options(argv, program="kube-proxy") == 0
    assert words in capsys.readouterr().out


def test_write_config_writes_what_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "out.yaml"
    assert run.parse_options([f"--write-config-to={file}", "--proxy-mode=ipvs"], program="kube-proxy") == 0
    assert config_from_bytes(file.read_bytes()).mode == "ipvs"


def test_write_config_to_an_impossible_place_fails_clearly(tmp_path: Path, capsys: Captured) -> None:
    assert run.parse_options([f"--write-config-to={tmp_path}"], program="kube-proxy") == 1
    assert f"cannot write {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["version"], ("msgspec", "argparse", "yaml", "asyncio")),
        (
            ["status", "--control-socket=/nowhere"],
            ("yaml", "asyncio", "aiohttp", "http.client", "subprocess"),
        ),
        (["list", "--control-socket=/nowhere"], ("yaml", "asyncio", "aiohttp", "http.client", "subprocess")),
        (["verify", "--control-socket=/nowhere"], ("yaml", "asyncio", "aiohttp", "http.client")),
    ],
    ids=lambda value: value[0],
)
def test_a_command_loads_only_what_it_needs(arguments: list[str], unneeded: tuple[str, ...]) -> None:
    code = "import sys; from pointsman.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    loaded = set(done.stderr.split())
    assert "pointsman.cli.output" in loaded
    assert loaded.isdisjoint(unneeded)
