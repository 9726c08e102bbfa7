"""The benchmark packets for ipvs mode, in User-mode Linux.

With KUBE_PROXY_BINARY set, outside of /tmp and /run, kube-proxy is measured beside ours. System calls are many times slower
there than on hardware, and there is one processor: compare the columns, not the microseconds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from bench.kube_proxy import link_programs
from bench.measured import print_row
from bench.uml import run_in_uml

from pointsman.kernel.iptables_programs import LEGACY, OVERRIDE

BOOT_SECONDS = 3000
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="100,1000,10000")
    parser.add_argument("--rounds", default="5")
    parser.add_argument("--limit", default="120", help="seconds for a proxy to load everything")


def run(options: argparse.Namespace) -> Any:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        programs = link_programs(Path(directory), LEGACY)
        environment = {OVERRIDE: LEGACY, "PATH": f"{programs}:{PATH}"}
        if os.environ.get("KUBE_PROXY_BINARY"):
            environment["KUBE_PROXY_BINARY"] = os.environ["KUBE_PROXY_BINARY"]
        found = run_in_uml(
            "packets",
            [
                "--modes=ipvs",
                f"--sizes={options.sizes}",
                f"--rounds={options.rounds}",
                f"--limit={options.limit}",
            ],
            timeout=BOOT_SECONDS,
            environment=environment,
        )
    for row in found["packets"]:
        print_row(row)
    return found
