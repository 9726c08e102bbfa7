"""What the running proxy must not load: every megabyte and every tenth of a second is spent on each node of a cluster."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import pointsman.serve

ROOT = Path(__file__).parents[2]
HEAVY = {"aiohttp", "email", "html", "http.client", "http.server", "mimetypes", "urllib.request"}
NEVER_LOADED = {"aiohttp"}
"""Not even by others; the library for metrics loads the rest."""

SECURED = {f"pointsman.{name}" for name in ("serve.tls", "serve.self_signed", "serve.authorization")}
"""Loaded only with --secure-metrics or --secure-health."""
RUNNING = [
    *(
        module.name
        for module in pkgutil.iter_modules(pointsman.serve.__path__, "pointsman.serve.")
        if module.name not in SECURED
    ),
    "pointsman.cli.run",
    "pointsman.app.supervisor",
]
"""Modules to be loaded with all that they load."""

SOURCES = [
    path for room in ("serve", "app", "kube", "http") for path in ROOT.glob(f"src/pointsman/{room}/*.py")
]
"""Files that name nothing heavy themselves."""


def test_a_proxy_does_without_the_largest_library_and_what_flags_ask_for() -> None:
    code = f"import sys, {', '.join(RUNNING)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (NEVER_LOADED | SECURED) & set(done.stdout.split()) == set()


def test_http2_is_loaded_only_for_a_server_that_speaks_it() -> None:
    code = f"import sys, {', '.join(RUNNING)}, pointsman.source.api; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = done.stdout.split()
    assert "pointsman.http.client" in loaded
    assert {"h2", "hpack", "pointsman.http.http2"} & set(loaded) == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_heavy_is_imported(path: Path) -> None:
    named = {
        name
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert [name for name in named if any(f"{name}.".startswith(f"{heavy}.") for heavy in HEAVY)] == []
