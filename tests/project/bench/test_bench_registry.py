"""Every benchmark can be run by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.__main__ import BENCHMARKS, main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_explains_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_an_unknown_name_is_an_error_that_lists_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "process" in capsys.readouterr().err


def test_documents_name_only_benchmarks_that_exist() -> None:
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")]
    named = {name for page in pages for name in re.findall(r"python -m bench ([\w-]+)", page.read_text())}
    assert named - {"report", "all", "NAME"} <= BENCHMARKS.keys()
    assert not [page.name for page in pages if "python -m bench." in page.read_text()]
