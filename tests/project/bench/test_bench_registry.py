"""Every benchmark can be run by its name, and runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from bench.__main__ import BENCHMARKS, main

ROOT = Path(__file__).parents[3]
SMALLEST: Mapping[str, str] = {
    "nftables": "--sizes 10x2 --changes 3",
    "nftables-drift": "--sizes 10x2 --changes 3",
    "packets": "--sizes 10 --rounds 1",
    "iptables": "--services 10 --endpoints 2 --rounds 1",
    "iptables-looks": "--services 10 --endpoints 2",
    "ipvs": "--services 10 --endpoints 2",
    "process": "--sizes 10x2 --changes 1 --rounds 1 --settle 0",
    "compare": "HEAD HEAD --sizes 10x2 --changes 1 --rounds 4 --settle 0",
    "latency": "--size 10x2 --loads 20:10,0:20",
    "start": "--size 10x2",
    "conntrack": "--flows 100 --services 10",
    "dns": "--rate 100 --seconds 2",
    "schedulers": "--size 10x2 --users 0,2 --changes 3",
    "balancing": "",
    "commands": "--services 10 --runs 1",
    "hostile": "--only node",
    "faults": "--only memory lock soak --services 10 --seconds 3",
    "simulate": "",
    "slo": "--nodes 2 --services 10 --endpoints 2 --rates 10 --seconds 1 --cut 2 --soak 2",
}
"""Options with which a benchmark takes seconds."""
HAS_NO_SMALL_SIZE = {"beside", "fleet", "packets-ipvs", "process-large", "reliability", "sizing"}
"""Too slow for every test run, at any size."""
BOOTS_A_KERNEL = {"ipvs"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_explains_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_every_benchmark_has_a_smallest_size() -> None:
    assert SMALLEST.keys() | HAS_NO_SMALL_SIZE == BENCHMARKS.keys()


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.uml if name in BOOTS_A_KERNEL else ()) for name in SMALLEST],
)
def test_every_benchmark_runs(name: str) -> None:
    command = [sys.executable, "-m", "bench", name, *SMALLEST[name].split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_name_is_an_error_that_lists_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "process" in capsys.readouterr().err


def test_documents_name_only_benchmarks_that_exist() -> None:
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]
    named = {name for page in pages for name in re.findall(r"python -m bench ([\w-]+)", page.read_text())}
    assert named - {"report", "all", "keep", "NAME"} <= BENCHMARKS.keys()
    assert not [page.name for page in pages if "python -m bench." in page.read_text()]
