"""One instance per node: the second names the first, or waits for its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pointsman.app.instance import sole_instance
from pointsman.errors import Busy

IMPORTS = "from pathlib import Path; from pointsman.app.instance import sole_instance\n"


def test_a_second_instance_is_refused_and_told_who_serves(tmp_path: Path) -> None:
    with (
        sole_instance(tmp_path, wait=False),
        pytest.raises(Busy, match=rf"another instance \(pid {os.getpid()}\).*--wait-for-instance"),
        sole_instance(tmp_path, wait=False),
    ):
        pytest.fail("two instances ran at once")


def test_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    with sole_instance(tmp_path, wait=False):
        pass
    killed = f"{IMPORTS}import os\nwith sole_instance(Path({str(tmp_path)!r}), wait=False): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", killed]).returncode == -9
    with sole_instance(tmp_path, wait=False):
        pass


def test_one_that_waits_takes_over_when_the_first_ends(tmp_path: Path) -> None:
    waits = f"{IMPORTS}with sole_instance(Path({str(tmp_path)!r}), wait=True): print('serving', flush=True)"
    with sole_instance(tmp_path, wait=False):
        second = subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1)
    assert second.communicate(timeout=20)[0] == b"serving\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="making a network namespace needs root")
def test_nodes_in_namespaces_of_one_machine_do_not_meet(tmp_path: Path) -> None:
    serves = f"{IMPORTS}with sole_instance(Path({str(tmp_path)!r}), wait=False): print('serving')"
    with sole_instance(tmp_path, wait=False):
        elsewhere = subprocess.run(
            ["unshare", "--net", sys.executable, "-c", serves], capture_output=True, check=True
        )
    assert elsewhere.stdout == b"serving\n"


def test_an_unusable_directory_is_no_reason_not_to_serve(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with sole_instance(tmp_path / "file", wait=False):
        pass
