"""The seccomp and AppArmor profiles of deploy/: the program works under them, and they keep out what it does not need."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.seccomp import PROFILE
from tests.harness.waiting import wait_until

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "docs/examples/shop"
CONFINED = (sys.executable, "-m", "tests.harness.seccomp")


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and netfilter")
def test_a_proxy_serves_with_the_system_calls_of_its_profile(mode: str, tmp_path: Path) -> None:
    control = f"--control-socket={tmp_path}/control"
    run = (sys.executable, "-m", "pointsman", "run", f"--proxy-mode={mode}", f"--manifests={SHOP}")
    place = ("--hostname-override=node-a", "--cluster-cidr=10.244.0.0/16", f"--state-dir={tmp_path}", control)
    script = 'ip link set lo up && exec "$@"'
    inside = ("unshare", "--net", "sh", "-c", script, "sh", *CONFINED, "kill", *run, *place)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(inside, cwd=ROOT, stdout=log, stderr=log)
    enter = ("nsenter", f"--net=/proc/{process.pid}/ns/net")

    def is_served() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        listed = subprocess.run((*enter, "nft", "list", "ruleset"), capture_output=True, text=True)
        return "10.96.0.20" in listed.stdout

    try:
        wait_until(is_served, seconds=60)
        for command in (("status",), ("explain", "shop/web"), ("verify",)):
            confined = (*enter, *CONFINED, "kill", sys.executable, "-m", "pointsman", *command, control)
            done = subprocess.run(confined, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode >= 0, f"{command}: ended by {signal.Signals(-done.returncode).name}"
        process.terminate()
        assert process.wait(30) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "call", ["os.unshare(os.CLONE_NEWUSER)", "os.mknod('/tmp/x')", "os.chroot('/')", "os.pidfd_open(1)"]
)
def test_other_system_calls_are_refused(call: str) -> None:
    script = f"import os\nif hasattr(os, '{call[3:].partition('(')[0]}'): {call}\nelse: raise PermissionError"
    done = subprocess.run(
        (*CONFINED, "shipped", sys.executable, "-c", script), cwd=ROOT, capture_output=True, text=True
    )
    assert "PermissionError" in done.stderr


def test_the_profile_is_one_that_runtimes_read() -> None:
    profile = json.loads(PROFILE.read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    (allowed,) = profile["syscalls"]
    assert allowed["names"] == sorted(set(allowed["names"]))
    assert not {"mount", "ptrace", "bpf", "keyctl", "unshare", "setns", "io_uring_setup"} & set(
        allowed["names"]
    )


@pytest.mark.skipif(shutil.which("apparmor_parser") is None, reason="needs apparmor_parser")
def test_the_apparmor_profile_can_be_compiled() -> None:
    profile = str(ROOT / "deploy/apparmor/pointsman")
    done = subprocess.run(
        ("apparmor_parser", "--skip-kernel-load", "--skip-cache", profile), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
