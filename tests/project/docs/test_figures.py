"""Figures in the documents are those of bench/results, not typed by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench import report

MEASURED = re.compile(
    r"\d[\d.,]* ?(?:ms|µs|us|kB|KiB|MiB|GiB|MB|GB|% of|per cent)\b|\d+ times (?:faster|less|more)"
)


def test_documents_show_the_kept_results() -> None:
    assert list(report.find_outdated()) == [], "run: python -m bench report"


def test_every_drawing_is_shown_and_none_is_left_over() -> None:
    drawn = set(report.draw_all(report.load()))
    shown = {
        (path.parent / found).resolve()
        for path in report.list_documents()
        for found in re.findall(r"!\[[^\]]*\]\(([^)]+\.svg)\)", path.read_text())
    }
    assert drawn - shown == set()
    assert set((report.ROOT / "docs" / "charts").glob("*.svg")) - drawn == set()


def test_every_kept_result_is_shown() -> None:
    shown = {
        name
        for path in report.list_documents()
        for _, names, _ in report.BLOCK.findall(path.read_text())
        for name in names.split()
    }
    assert shown == set(report.load())


@pytest.mark.parametrize("path", report.list_documents(), ids=lambda path: path.name)
def test_no_document_holds_a_measured_figure_of_its_own(path: Path) -> None:
    text = report.BLOCK.sub("", path.read_text())
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith(tuple(report.README_ROWS))]
    assert [line for line in lines if MEASURED.search(line)] == []


def test_a_block_shows_the_results_it_names() -> None:
    text = "before\n<!-- figures of mode: written by python -m bench report -->\nold\n<!-- end of figures -->\nafter\n"
    assert report.fill_figures(text, {"mode": [{"size": 5}], "other": []}) == (
        "before\n<!-- figures of mode: written by python -m bench report -->\n\n"
        "| size |\n|---|\n| 5 |\n\n<!-- end of figures -->\nafter\n"
    )


def test_the_readme_shows_either_program() -> None:
    rows = [
        {
            "program": "pointsman",
            "services": 10000,
            "endpoints": 10,
            "full_sync_s": 0.5,
            "change_p50_ms": 1.26,
        },
        {
            "program": "kube-proxy",
            "services": 10000,
            "endpoints": 10,
            "full_sync_s": 25.4,
            "change_p50_ms": 1650.0,
        },
    ]
    text = "| one of those endpoints changes | old | old |\n| unrelated | kept | kept | | |\n"
    assert report.fill_readme(text, {"process": {"whole_process": rows}}) == (
        "| one of those endpoints changes | 1.26 ms | 1650 ms |\n| unrelated | kept | kept | | |\n"
    )


def test_a_table_has_units_in_its_cells_and_gaps_where_nothing_was_measured() -> None:
    results = {"note": "on a quiet machine", "syncs": [{"size": 5, "cold_s": 1.26}, {"size": 6}]}
    assert list(report.render_tables(results)) == [
        "Note: on a quiet machine.\n",
        "Syncs:\n\n| size | cold |\n|---|---|\n| 5 | 1.26 s |\n| 6 |  |\n",
    ]


def test_connections_are_added_up() -> None:
    rows = [{"connections": 1000, "lost": 0}, {"connections": 234, "lost": 1}]
    assert list(report.render_tables(rows))[-1] == "Together: **1,234 connections, 1 lost**.\n"


def test_a_cell_shows_the_range_of_its_rounds() -> None:
    rows = [{"cold_s": 1.5, "cold_s_range": [1.25, 2.0]}, {"cold_s": 3.0}]
    assert list(report.render_tables(rows)) == ["| cold |\n|---|\n| 1.5 s (1.25 to 2) |\n| 3 s |\n"]
