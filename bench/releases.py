"""Main figures of every release and machine, kept in bench/history: python -m bench keep RELEASE, after the benchmarks ran."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.apiserver import STREAMED
from bench.proxies import OURS

HISTORY = Path(__file__).parent / "history"
KEPT = ("started_to_synced_s", "full_sync_s", "change_p50_ms", "rss_mib", "peak_mib")

Rows = Sequence[Mapping[str, Any]]


def describe_machine() -> str:
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} x {model[1] if model else os.uname().machine}"


def select_figures(release: str, results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ours of the whole process, with the ratios to kube-proxy where it ran beside."""
    rows = [row for row in results["process"]["whole_process"] if row.get("lists", STREAMED) == STREAMED]
    found = []
    for row in rows:
        if row["program"] != OURS:
            continue
        size = {name: row[name] for name in ("services", "endpoints")}
        theirs: Mapping[str, Any] = next(
            (r for r in rows if r["program"] != OURS and size.items() <= r.items()), {}
        )
        figures = {name: row[name] for name in KEPT if name in row}
        ratios = {
            f"{name.rpartition('_')[0]}_ratio": theirs[name] / row[name] for name in figures if name in theirs
        }
        found.append(
            {"release": release, **size, "server": results["process"]["server"], **figures, **ratios}
        )
    return found


def keep(release: str, results: Mapping[str, Any]) -> Path:
    """Add the main figures to the file of this machine, in place of those of the same release."""
    file = HISTORY / (re.sub(r"[^a-z0-9]+", "-", describe_machine().lower()).strip("-") + ".json")
    kept = json.loads(file.read_text())["releases"] if file.exists() else []
    rows = [row for row in kept if row["release"] != release] + select_figures(release, results)
    rows.sort(key=lambda row: (row["services"], row["endpoints"]))
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"machine": describe_machine(), "releases": rows}, indent=1) + "\n")
    return file


def load() -> dict[str, Any]:
    """The tables of all machines."""
    files = (json.loads(path.read_text()) for path in sorted(HISTORY.glob("*.json")))
    return {found["machine"]: found["releases"] for found in files}
