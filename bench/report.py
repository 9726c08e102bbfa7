"""Puts the figures of bench/results/*.json into docs/performance.md and README.md, so that no figure is typed by hand.

python -m bench.report            rewrite both
python -m bench.report --check    say whether they are up to date, exit status 1 if not
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PERFORMANCE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: written by python -m bench.report -->", "<!-- end of figures -->"
UNITS = {"_s": " s", "_ms": " ms", "_us": " µs", "_mib": " MiB", "_mb": " MB", "_percent": " %"}
SIZE = (10000, 10)
README_ROWS = {
    "| first sync of 10,000 Services with 10 endpoints each": "full_sync_s",
    "| one endpoint of them changes": "change_p50_ms",
    "| memory of the process then": "rss_mib",
}
"""Rows of the table in README.md, by how they begin, and the figure they show of either program."""

Rows = Sequence[Mapping[str, Any]]


def load() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def tables(results: Mapping[str, Any]) -> Iterator[str]:
    """A section per results file, a table per list of measurements in it."""
    for name, found in results.items():
        yield f"### {name}\n"
        parts = found if isinstance(found, dict) else {"": found}
        for part, value in parts.items():
            if isinstance(value, str):
                yield f"{part.replace('_', ' ').capitalize()}: {value}.\n"
            elif value and isinstance(value, list):
                yield (f"{part.replace('_', ' ').capitalize()}:\n\n" if part else "") + _table(value)


def _table(rows: Rows) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(_heading(column) for column in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(column, row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _heading(column: str) -> str:
    unit = next((ending for ending in UNITS if column.endswith(ending)), "")
    return column.removesuffix(unit).replace("_", " ")


def _cell(column: str, value: object) -> str:
    if isinstance(value, float):
        unit = next((text for ending, text in UNITS.items() if column.endswith(ending)), "")
        return f"{_rounded(value)}{unit}"
    return "" if value is None else str(value)


def _rounded(value: float) -> str:
    """Two or three digits: more would be noise."""
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def performance(text: str, results: Mapping[str, Any]) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n".join(tables(results)) + f"\n{END}{after}"


def readme(text: str, results: Mapping[str, Any]) -> str:
    rows: Rows = results.get("process", ())
    ours, theirs = (_measured(rows, program) for program in ("pointsman", "kube-proxy"))
    if not ours or not theirs:
        return text
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        begin = line.rsplit("|", 5)[0].rstrip()
        if begin in README_ROWS:
            figure = README_ROWS[begin]
            cells = (
                _cell(figure, ours[figure]),
                _cell(figure, theirs[figure]),
                "not measured",
                "not measured",
            )
            lines[number] = f"{begin} | {' | '.join(cells)} |\n"
    return "".join(lines)


def _measured(rows: Rows, program: str) -> Mapping[str, Any]:
    return next(
        (row for row in rows if row["program"] == program and (row["services"], row["endpoints"]) == SIZE), {}
    )


def outdated() -> dict[Path, str]:
    """The documents that do not show the results, with what they should say."""
    results = load()
    wanted = {
        PERFORMANCE: performance(PERFORMANCE.read_text(), results),
        README: readme(README.read_text(), results),
    }
    return {path: text for path, text in wanted.items() if path.read_text() != text}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    found = outdated()
    for path, text in found.items():
        print(f"{path.relative_to(ROOT)} {'is out of date' if options.check else 'rewritten'}")
        if not options.check:
            path.write_text(text)
    return 1 if options.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
