"""The walk without a cluster in docs/getting-started.md works as written: its shell blocks run in a namespace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "getting-started.md"
TOOLS = ("unshare", "mount", "ip", "nft", "curl", "python3")
SHELL = ("unshare", "--net", "--mount", "sh", "-c", "mount -t tmpfs none /run && exec bash -e")
"""A network of its own, and a /run of its own, so that no proxy of this machine is met."""


def _blocks() -> list[str]:
    text = DOCUMENT.read_text()
    section = text[text.index("\n## On one host") : text.index("\n## In a cluster")]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def _why_not_here() -> str:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "needs root: network namespaces and netfilter"
    return f"not installed: {', '.join(missing)}" if missing else ""


def test_the_walk_begins_with_installing_and_a_shell_in_a_namespace() -> None:
    install = _blocks()[0].splitlines()
    assert install[-1].startswith("sudo unshare --net env PATH=")
    assert all("pointsman" in line for line in install)


@pytest.mark.kernel
@pytest.mark.skipif(bool(_why_not_here()), reason=_why_not_here())
def test_every_command_of_the_walk_works_and_shows_what_the_text_says(tmp_path: Path) -> None:
    programs = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    environment = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    script = "".join(f"echo '=== {number}'\n{block}" for number, block in enumerate(_blocks()[1:]))
    walk = subprocess.run(
        SHELL, input=script, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
    )
    log = tmp_path / "pointsman.log"
    assert walk.returncode == 0, walk.stdout + walk.stderr + (log.read_text() if log.exists() else "")
    _, _, look, both, one, repaired, stopped = re.split(r"^=== \d\n", walk.stdout, flags=re.MULTILINE)[1:]
    assert "198.51.100.80 . tcp . 80 . 1 : 192.0.2.12 . 8080" in look
    assert "delivered to one of 2 endpoints" in look
    assert re.findall(r"^ *\d+ (.+)$", both, re.MULTILINE) == ["first", "second"]
    assert re.findall(r"^ *(\d+) (.+)$", one, re.MULTILINE)[0] == ("20", "first")
    assert "192.0.2.12:8080  no node  out  not ready" in one
    assert "Kernel: matches the desired state" in one
    assert repaired.splitlines() == [
        "✓ IPv4: the kernel matches the desired state",
        "✓ IPv6: the kernel matches the desired state",
        "first",
    ]
    first, *done = stopped.splitlines()
    assert first == "first"
    assert "removed table ip kube-proxy" in done
    assert any(line.startswith("restored kernel setting ") for line in done)
