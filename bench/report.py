"""Puts the figures of bench/results/*.json into the documents, as tables and charts, so that none is typed by hand.

A document shows results between the lines `<!-- figures of NAME ...: written by python -m bench report -->` and
`<!-- end of figures -->`; README.md also shows single ones in its comparison. Charts are docs/charts/*.svg and docs/balancing-*.svg.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.charts import draw_charts
from bench.measured import RANGE
from bench.releases import load as load_history

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
README = ROOT / "README.md"
BLOCK = re.compile(
    r"^(<!-- figures of ([\w -]+): written by python -m bench report -->)$.*?^(<!-- end of figures -->)$",
    re.DOTALL | re.MULTILINE,
)
UNITS = {
    "_s": " s",
    "_ms": " ms",
    "_us": " µs",
    "_mib": " MiB",
    "_mb": " MB",
    "_kb": " kB",
    "_gb": " GB",
    "_gbit": " Gbit/s",
    "_percent": " %",
}
SIZE = (10000, 10)
README_ROWS = {
    "| first sync of 10,000 Services with 10 endpoints each": "full_sync_s",
    "| one of those endpoints changes": "change_p50_ms",
    "| from a change to its rules in the kernel, by default and at ten changes per second, mean": "mean_ms",
    "| memory of the process then": "rss_mib",
}
"""Rows of the table in README.md, by how they begin, and the figure they show of either program."""

Rows = Sequence[Mapping[str, Any]]


def load() -> dict[str, Any]:
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    return results | {"history": load_history()}


def list_documents() -> list[Path]:
    return [README, *sorted((ROOT / "docs").rglob("*.md"))]


def fill_figures(text: str, results: Mapping[str, Any]) -> str:
    """The text with every block of figures as the results have it."""

    def block(found: re.Match[str]) -> str:
        names = found[2].split()
        sections = (
            (f"### {name}\n\n" if len(names) > 1 else "") + "\n".join(render_tables(results[name]))
            for name in names
        )
        return f"{found[1]}\n\n" + "\n".join(sections) + f"\n{found[3]}"

    return BLOCK.sub(block, text)


def render_tables(found: Any) -> Iterator[str]:
    """The notes and tables of one results file."""
    parts = found if isinstance(found, dict) else {"": found}
    for part, value in parts.items():
        if isinstance(value, str):
            yield f"{part.replace('_', ' ').capitalize()}: {value}.\n"
        elif value and isinstance(value, list):
            yield (f"{part.replace('_', ' ').capitalize()}:\n\n" if part else "") + _table(value)
            yield from _together(value)


def _together(rows: Rows) -> Iterator[str]:
    if all("connections" in row and "lost" in row for row in rows):
        connections, lost = (sum(int(row[column]) for row in rows) for column in ("connections", "lost"))
        yield f"Together: **{connections:,} connections, {lost:,} lost**.\n"


def _table(rows: Rows) -> str:
    columns = [
        column for column in dict.fromkeys(name for row in rows for name in row) if not column.endswith(RANGE)
    ]
    lines = ["| " + " | ".join(_heading(column) for column in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_shown(column, row) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _heading(column: str) -> str:
    unit = next((ending for ending in UNITS if column.endswith(ending)), "")
    return column.removesuffix(unit).replace("_", " ")


def _shown(column: str, row: Mapping[str, Any]) -> str:
    """A cell, with the range of its rounds where there were several."""
    low_and_high = " to ".join(map(_rounded, row.get(column + RANGE, ())))
    return _cell(column, row.get(column)) + (f" ({low_and_high})" if low_and_high else "")


def _cell(column: str, value: object) -> str:
    if isinstance(value, int | float):
        unit = next((text for ending, text in UNITS.items() if column.endswith(ending)), "")
        return f"{_rounded(value) if isinstance(value, float) else value}{unit}"
    return "" if value is None else str(value)


def _rounded(value: float) -> str:
    """Two or three digits: more would be noise."""
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def fill_readme(text: str, results: Mapping[str, Any]) -> str:
    ours, theirs = (_find_figures(results, program) for program in ("pointsman", "kube-proxy"))
    if not ours or not theirs:
        return text
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        begin = line.rsplit("|", 3)[0].rstrip()
        if begin in README_ROWS:
            figure = README_ROWS[begin]
            cells = (_cell(figure, ours[figure]), _cell(figure, theirs[figure]))
            lines[number] = f"{begin} | {' | '.join(cells)} |\n"
    return "".join(lines)


def _find_figures(results: Mapping[str, Any], program: str) -> Mapping[str, Any]:
    """Return the figures of a program at that size, of the latency those of the first load."""
    found: dict[str, Any] = {}
    for name, table in (("latency", "latency"), ("process", "whole_process")):
        for row in results.get(name, {}).get(table, ()):
            if row["program"] == program and (row["services"], row["endpoints"]) == SIZE:
                found = {**row, **found}
    return found


def find_outdated() -> dict[Path, str]:
    """The documents that do not show the results, with what they should say."""
    results, found = load(), {}
    for path in list_documents():
        text = path.read_text()
        wanted = fill_figures(fill_readme(text, results) if path == README else text, results)
        if wanted != text:
            found[path] = wanted
    drawn = draw_all(results).items()
    return found | {path: text for path, text in drawn if not path.is_file() or path.read_text() != text}


def draw_all(results: Mapping[str, Any]) -> dict[Path, str]:
    """Every chart as the results have it."""
    return {ROOT / "docs" / name: text for name, text in draw_charts(results)}


def update(*, check: bool) -> int:
    """Rewrite documents that are out of date, or only name them. Returns an exit status."""
    found = find_outdated()
    for path, text in found.items():
        print(f"{path.relative_to(ROOT)} {'is out of date' if check else 'rewritten'}")
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return 1 if check and found else 0
