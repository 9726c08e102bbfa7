"""Which versions of nft can list our table: other programs of a node list all tables with the nft they bring.

python -m tests.kernel.nft_versions [SUITE...]

Takes nft with all its libraries from releases of Debian, without installing anything, and lets each list what a running proxy wrote for
the recorded scenario `everything` and a Service for every scheduler, as text and as JSON. Needs root and a Debian mirror.
Prints the table of docs/compatibility.md; the exit status is 1 when a version from 1.0.1 on fails.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.release.debian_files import MIRROR, unpack

from pointsman.model.balancing import OWN_SCHEDULERS

ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = ROOT / "tests/golden/data/everything/objects.json"
SUITES = ("bullseye", "bookworm", "trixie", "sid")
OLDEST = (1, 0, 1)
_TIMEOUT_SECONDS = 120.0


def main(suites: Sequence[str]) -> int:
    failed = False
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        _write_objects(place / "manifests")
        proxy = _start_proxy(place)
        try:
            print("| Debian | nft | text | JSON |\n|---|---|---|---|")
            for suite in suites:
                root = place / suite
                version = _unpack_nft(suite, root)
                results = [_list(root, proxy.pid, *option) for option in ((), ("--json",))]
                print(f"| {suite} | {version} | {' | '.join(results)} |", flush=True)
                numbers = tuple(map(int, version.split(".")))
                failed |= numbers >= OLDEST and any(result.startswith("no") for result in results)
        finally:
            proxy.send_signal(signal.SIGTERM)
            proxy.wait()
    return int(failed)


def _write_objects(directory: Path) -> None:
    directory.mkdir()
    shutil.copy(EVERYTHING, directory)
    for number, scheduler in enumerate(OWN_SCHEDULERS, 1):
        name = f"scheduler-{scheduler}"
        metadata = {
            "name": name,
            "namespace": "default",
            "annotations": {"pointsman.dev/scheduler": scheduler},
        }
        port = {"name": "http", "port": 80, "targetPort": 8080}
        spec = {"clusterIP": f"10.96.200.{number}", "ports": [port], "sessionAffinity": "ClientIP"}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
        labels = {"kubernetes.io/service-name": name}
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{name}-1", "namespace": "default", "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [
                {"addresses": [f"10.244.9.{last}"], "conditions": {"ready": True}} for last in (1, 2)
            ],
        }
        for kind, item in (("service", service), ("slice", endpoints)):
            (directory / f"{name}-{kind}.json").write_text(json.dumps(item))


def _start_proxy(place: Path) -> subprocess.Popen[bytes]:
    """Return the proxy in a network namespace of its own, when the last scheduler's Service is in the kernel."""
    command = [
        *("unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
        *(
            sys.executable,
            "-m",
            "pointsman",
            "run",
            "--manifests",
            str(place / "manifests"),
            "--proxy-mode=nftables",
        ),
        *("--hostname-override=n1", "--cluster-cidr=10.244.0.0/16", f"--control-socket={place}/control"),
        *("--service-metrics", "--conntrack-max-per-core=0"),
    ]
    with (place / "log").open("wb") as log:
        proxy = subprocess.Popen(command, stdout=log, stderr=log)
    until = time.monotonic() + _TIMEOUT_SECONDS
    while f"10.96.200.{len(OWN_SCHEDULERS)} " not in _run_inside(proxy.pid, "nft", "list", "ruleset").stdout:
        if proxy.poll() is not None or time.monotonic() > until:
            proxy.kill()
            raise SystemExit(f"the proxy wrote no rules:\n{(place / 'log').read_text()[-3000:]}")
        time.sleep(0.5)
    return proxy


def _run_inside(pid: int, *command: str) -> subprocess.CompletedProcess[str]:
    entered = ("nsenter", f"--net=/proc/{pid}/ns/net", "--", *command)
    return subprocess.run(entered, capture_output=True, text=True, errors="replace")


def _list(root: Path, pid: int, *options: str) -> str:
    done = _run_inside(pid, "chroot", str(root), "/usr/sbin/nft", *options, "list", "ruleset")
    if done.returncode < 0:
        return f"no: killed by {signal.Signals(-done.returncode).name}"
    if done.returncode:
        return f"no: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
    if options:
        return "yes" if len(json.loads(done.stdout)["nftables"]) > len(OWN_SCHEDULERS) else "no: incomplete"
    return "yes" if "10.96.200.1 " in done.stdout else "no: incomplete"


def _unpack_nft(suite: str, root: Path) -> str:
    """Unpack nft and all it depends on; return its version."""
    with urllib.request.urlopen(f"{MIRROR}/debian/dists/{suite}/main/binary-amd64/Packages.xz") as answer:
        packages = dict(_parse_packages(lzma.decompress(answer.read()).decode()))
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    wanted, done = ["nftables"], set[str]()
    while wanted:
        name = wanted.pop()
        if name in done or name not in packages or name == "debconf":
            continue
        done.add(name)
        wanted += re.findall(r"(?:^|, )([a-z0-9.+-]+)", packages[name].get("Depends", ""))
        file = root / f"{name}.deb"
        urllib.request.urlretrieve(f"{MIRROR}/debian/{packages[name]['Filename']}", file)
        unpack(file, root)
    return re.split(r"[-~+]", packages["nftables"]["Version"])[0]


def _parse_packages(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Depends|Filename): (.*)$", paragraph, re.MULTILINE))
        if fields:
            yield fields["Package"], fields


if __name__ == "__main__":
    if os.geteuid() != 0:
        raise SystemExit("run as root: it needs a network namespace")
    sys.exit(main(sys.argv[1:] or SUITES))
