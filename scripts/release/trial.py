"""Whether an artefact works: it serves a Service in a network namespace, from a root directory of its own, with the
privileges of a node's pod and no more.

Needs root. `python -m scripts.release.trial ROOT COMMAND...` is the part that runs inside the namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scripts.release import oci
from scripts.release.source import ROOT
from scripts.release.tree import PREFIX

CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}
_DROP_FROM_BOUNDING_SET, _NO_NEW_PRIVILEGES = 24, 38
_TIMEOUT_SECONDS = 60.0
_ADDRESS = "10.96.0.20"
"""The cluster IP of shop/web in docs/examples/shop."""

_IMPORT_EVERYTHING = """
import importlib, pkgutil, pointsman
for module in pkgutil.walk_packages(pointsman.__path__, "pointsman."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
"""What was left out of the image's Python must not be missed by any part of the program."""


class Failed(RuntimeError):
    """The artefact does not do what it should."""


def require_root(command: str) -> None:
    """Exit unless the trial can run: what was not tried is not left in dist/."""
    if os.geteuid() != 0:
        raise SystemExit(f"{command}: run as root: what it builds is tried in a network namespace")
    if not shutil.which("nft"):
        raise SystemExit(f"{command}: the program nft is missing")


def try_package(package: Path) -> None:
    """Installs it with dpkg on a throw-away layer above this machine's root, and runs the command of its unit."""
    with _mount_copy_of_root() as root:
        inside = root / "tmp" / package.name
        shutil.copyfile(package, inside)
        _run_chrooted(root, "dpkg", "--install", f"/tmp/{package.name}")
        version = _run_chrooted(root, "pointsman", "version")
        if shutil.which("systemd-analyze"):
            _run_chrooted(root, "systemd-analyze", "verify", "/usr/lib/systemd/system/pointsman.service")
        manifests = root / "etc/pointsman/manifests"
        shutil.copytree(ROOT / "docs/examples/shop", manifests, dirs_exist_ok=True)
        unit = (root / "usr/lib/systemd/system/pointsman.service").read_text()
        lines = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and line[0] != "#")
        name, value = lines["Environment"].split("=")
        serves(root, lines["ExecStart"].split(), {name: value}, writable=("run", "tmp"))
        _run_chrooted(root, "dpkg", "--purge", "pointsman")
        if (root / "opt/pointsman").exists():
            raise Failed("dpkg --purge leaves files in /opt/pointsman")
    print(
        f"==> tried: {package.name} installs, its unit's command serves, it goes away again; {version.strip()}"
    )


def try_image(content: bytes) -> None:
    """Unpacks it as a runtime does, and starts its entrypoint on a read-only root; every library must be there."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "root"
        configured = oci.unpack(content, root)["config"]
        _find_libraries(root)
        (root / "etc/pointsman/manifests").mkdir()
        shutil.copytree(ROOT / "docs/examples/shop", root / "etc/pointsman/manifests", dirs_exist_ok=True)
        shipped = (ROOT / "deploy/systemd/config.yaml").read_text()
        environment = dict(setting.split("=", 1) for setting in configured["Env"])
        sources = ("--manifests=/etc/pointsman/manifests", "--config=/etc/pointsman/config.yaml")
        command = [*configured["Entrypoint"], *configured["Cmd"], *sources]
        for mode in ("nftables", "iptables"):
            (root / "etc/pointsman/config.yaml").write_text(shipped.replace("nftables", mode))
            serves(root, command, environment, writable=("run", "tmp"))
        for program in ("iptables", "iptables-legacy", "modprobe", "kube-proxy"):
            _run_chrooted(root, program, "--version", **environment)
        _run_chrooted(root, f"{PREFIX}/bin/python3", "-c", _IMPORT_EVERYTHING, **environment)
    print("==> tried: the image serves in two modes, on a read-only root with NET_ADMIN and NET_RAW only")


def try_foreign_image(content: bytes, machine: str) -> None:
    """Run the image of another architecture under qemu's user emulation, which has no nftables sockets: everything but serving."""
    emulator = shutil.which(f"qemu-{machine}-static")
    if emulator is None:
        raise Failed(f"qemu-{machine}-static is missing: install qemu-user-static")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "root"
        configured = oci.unpack(content, root)["config"]
        shutil.copy2(emulator, root / "tmp/qemu")
        shutil.copytree(ROOT / "docs/examples/shop", root / "etc/pointsman/manifests")
        environment = dict(setting.split("=", 1) for setting in configured["Env"])

        def run(*command: str) -> str:
            return _run_chrooted(root, "/tmp/qemu", *command, **environment)

        python = f"{PREFIX}/bin/python3"
        _find_libraries(root, "/tmp/qemu")
        run(python, "-c", _IMPORT_EVERYTHING)
        run("/usr/sbin/xtables-legacy-multi", "iptables", "--version")
        for mode in ("nftables", "iptables", "ipvs"):
            render = ("pointsman", "render", f"--proxy-mode={mode}", "--node=node-a", "--manifests")
            here = subprocess.run(
                (sys.executable, "-m", *render, str(ROOT / "docs/examples/shop")),
                check=True,
                capture_output=True,
                text=True,
            )
            if run(python, "-m", *render, "/etc/pointsman/manifests") != here.stdout:
                raise Failed(f"the image for {machine} renders other rules in {mode} mode")
    print(f"==> tried: the image for {machine} imports all modules and renders the same rules, under qemu")


def _find_libraries(root: Path, *emulator: str) -> None:
    """Asks the image's own loader for the libraries of every program and extension module in it."""
    elf = [
        f"/{path.relative_to(root)}"
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and path.open("rb").read(4) == b"\x7fELF"
        and path.parent.name != "tmp"
    ]
    (loader,) = [path for path in elf if re.fullmatch(r".*/ld-linux-[^/]*", path)]
    missing = [
        f"{path}: {line.strip()}"
        for path in elf
        for line in _run_chrooted(root, *emulator, loader, "--list", path, anyway=True).splitlines()
        if "not found" in line
    ]
    if missing:
        raise Failed("libraries are missing:\n" + "\n".join(missing))


def serves(
    root: Path, command: Sequence[str], environment: Mapping[str, str], *, writable: Sequence[str]
) -> None:
    """Runs it in `root`, read-only but for `writable`, until its rules for shop/web are in the kernel, and ends it."""
    mounts = [f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc"]
    mounts += [f"mount -t tmpfs tmpfs {root}/{name}" for name in writable]
    mounts += [f"mount -o remount,bind,ro {root}", "ip link set lo up"]
    script = " && ".join(mounts) + ' && exec "$@"'
    inside = [sys.executable, "-m", "scripts.release.trial", str(root), *command]
    log = tempfile.TemporaryFile()  # noqa: SIM115  it outlives this line
    process = subprocess.Popen(
        ("unshare", "--mount", "--net", "--ipc", "--uts", "bash", "-c", script, "bash", *inside),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        _wait_for_rules(process)
        _check_confinement(process.pid)
        process.terminate()
        if process.wait(_TIMEOUT_SECONDS) != 0:
            raise Failed(f"exit status {process.returncode} after SIGTERM")
    except Failed as error:
        log.seek(0)
        raise Failed(f"{error}\n{log.read().decode(errors='replace')[-4000:]}") from None
    finally:
        process.kill()
        process.wait()
        log.close()


def _wait_for_rules(process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        if process.poll() is not None:
            raise Failed(f"ended by itself with exit status {process.returncode}")
        asked = subprocess.run(
            ("nsenter", "--net", "--target", str(process.pid), "nft", "list", "ruleset"),
            check=False,
            capture_output=True,
            text=True,
        )
        if _ADDRESS in asked.stdout:
            return
        if time.monotonic() > until:
            raise Failed(f"no rule for {_ADDRESS} after {_TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.2)


def _check_confinement(pid: int) -> None:
    """A trial that lent it more than a node's pod has would show nothing."""
    status = Path(f"/proc/{pid}/status").read_text()
    (effective,) = re.findall(r"^CapEff:\s+(\w+)$", status, re.MULTILINE)
    if int(effective, 16) != sum(1 << capability for capability in CAPABILITIES.values()):
        raise Failed(f"it runs with other capabilities than {' and '.join(CAPABILITIES)}: {effective}")
    if not os.statvfs(f"/proc/{pid}/root").f_flag & os.ST_RDONLY:
        raise Failed("its root directory is writable")


@contextlib.contextmanager
def _mount_copy_of_root() -> Iterator[Path]:
    """A copy of this machine's files in which everything may be changed; it costs what is changed."""
    with tempfile.TemporaryDirectory() as directory:
        layer = Path(directory)
        subprocess.run(("mount", "-t", "tmpfs", "tmpfs", directory), check=True)
        try:
            for name in ("upper", "work", "root"):
                (layer / name).mkdir()
            options = f"lowerdir=/,upperdir={layer}/upper,workdir={layer}/work"
            subprocess.run(("mount", "-t", "overlay", "-o", options, "overlay", f"{layer}/root"), check=True)
            yield layer / "root"
        finally:
            subprocess.run(("umount", "--lazy", f"{layer}/root"), check=False)
            subprocess.run(("umount", "--lazy", directory), check=False)


def _run_chrooted(root: Path, *command: str, anyway: bool = False, **environment: str) -> str:
    """What a command prints in another root; `anyway` also when it fails."""
    done = subprocess.run(
        ("unshare", "--mount", "--net", "chroot", str(root), *command),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    if done.returncode and not anyway:
        raise Failed(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _enter_container(root: str, command: list[str]) -> None:
    """Inside the namespaces: the new root, then all privileges away but those of a node's pod, then the program."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.chroot(root)
    os.chdir("/")
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        if capability not in CAPABILITIES.values() and libc.prctl(
            _DROP_FROM_BOUNDING_SET, capability, 0, 0, 0
        ):
            raise OSError(ctypes.get_errno(), f"capability {capability} cannot be dropped")
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")
    os.execvp(command[0], command)


if __name__ == "__main__":
    _enter_container(sys.argv[1], sys.argv[2:])
