"""bench.packets for ipvs mode, in User-mode Linux: the machine's own kernel may have no ip_vs.

    sudo python -m bench.packets_ipvs [--sizes 100,1000,10000] [--rounds 5] [--limit 120] [--json FILE]

With KUBE_PROXY_BINARY set, outside of /tmp and /run, kube-proxy is measured beside ours. System calls are many times slower
there than on hardware, and there is one processor: compare the columns, not the microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from bench.kube_proxy_iptables import variant_programs
from bench.uml import results_of

from pointsman.kernel.iptables_programs import LEGACY, OVERRIDE

BOOT_SECONDS = 3000
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="100,1000,10000")
    parser.add_argument("--rounds", default="5")
    parser.add_argument("--limit", default="120", help="seconds for a proxy to load everything")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        programs = variant_programs(Path(directory), LEGACY)
        environment = {OVERRIDE: LEGACY, "PATH": f"{programs}:{PATH}"}
        if os.environ.get("KUBE_PROXY_BINARY"):
            environment["KUBE_PROXY_BINARY"] = os.environ["KUBE_PROXY_BINARY"]
        found = results_of(
            "bench.packets",
            [
                "--modes=ipvs",
                f"--sizes={options.sizes}",
                f"--rounds={options.rounds}",
                f"--limit={options.limit}",
            ],
            option="--json",
            timeout=BOOT_SECONDS,
            environment=environment,
        )
    for row in found["packets"]:
        print(" ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
