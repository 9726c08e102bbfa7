"""Figures in the documents are those of bench/results, not typed by hand."""

from __future__ import annotations

from bench import report


def test_documents_show_the_kept_results() -> None:
    assert list(report.outdated()) == [], "run: python -m bench.report"


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
    text = "| one endpoint of them changes | old | old | | |\n| unrelated | kept | kept | | |\n"
    assert report.readme(text, {"process": rows}) == (
        "| one endpoint of them changes | 1.26 ms | 1650 ms | not measured | not measured |\n| unrelated | kept | kept | | |\n"
    )


def test_a_table_has_units_in_its_cells_and_gaps_where_nothing_was_measured() -> None:
    results = {"mode": {"note": "on a quiet machine", "syncs": [{"size": 5, "cold_s": 1.26}, {"size": 6}]}}
    assert list(report.tables(results)) == [
        "### mode\n",
        "Note: on a quiet machine.\n",
        "Syncs:\n\n| size | cold |\n|---|---|\n| 5 | 1.26 s |\n| 6 |  |\n",
    ]
