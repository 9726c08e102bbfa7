"""The commands in documents print what the documents show; those for a node are in tests/kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.live_proxy import live_proxy
from tests.unit.cli.walkthrough import DOCS, EXAMPLES, Shell, compare, sessions, settled

from pointsman.source.manifest_files import load_objects

pytestmark = pytest.mark.slow
DOCUMENTS = {DOCS / "troubleshooting.md": 6, DOCS / "simulate.md": 6, DOCS / "conntrack.md": 3}
"""And how many commands they have at least."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_commands_on_manifests_print_what_is_shown(document: Path, tmp_path: Path) -> None:
    shown = list(sessions(document))
    assert len(shown) >= DOCUMENTS[document]
    compare(Shell(tmp_path), shown)


def test_commands_on_a_running_proxy_print_what_is_shown(tmp_path: Path) -> None:
    objects, problems = load_objects(EXAMPLES)
    assert problems == []
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    shown = [each for document in DOCUMENTS for each in sessions(document, "live")]
    with live_proxy(tmp_path, *objects, node_name="node-a") as proxy:
        compare(Shell(bin_directory, " ".join(proxy.arguments)), shown, settled)
