"""Runs the tests that touch a kernel on Debian's own kernels, and keeps what passed where for docs/evidence/kernels.md.

python -m tests.kernel.qemu [--suites bookworm,trixie,sid] [--groups NAME,...] [--json FILE] [-- PYTEST-ARGUMENTS]

With --json, rows of the file that were not run again stay. Each group is one boot in qemu, on one emulated processor.
"""

from __future__ import annotations

import argparse
import compileall
import json
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from tests.kernel.qemu import boot
from tests.kernel.qemu.debian import Kernel, fetched
from tests.kernel.uml.conftest import CHOOSE_VARIANT

from pointsman.kernel.iptables_programs import NFT, OVERRIDE

ROOT: Final = Path(__file__).resolve().parents[3]
SUITES: Final = ("bookworm", "trixie", "sid")
BOOT_SECONDS: Final = 4 * 3600
_TIME_FACTOR: Final = "POINTSMAN_TEST_TIME_FACTOR=4"
"""Timeouts of the tests are multiplied by it: see `tests.harness.waiting`."""
_INSIDE: Final = "POINTSMAN_UML_REPORT=/mnt/reports"
"""The ipvs tests are then run where they are, instead of booting User-mode Linux for themselves."""

IPVS_OVER_NFT: Final = "recorded states and life of ipvs mode, over the nft variant of iptables"
KERNEL: Final = ("tests/kernel", "--ignore=tests/kernel/uml")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "nftables: rules, elements, foreign hands": (*KERNEL, "-k", "nft"),
    "recorded states, nftables packets": ("tests/golden/test_nftables_packets_golden.py",),
    "recorded states, iptables rules": ("tests/golden/test_iptables_kernel_golden.py",),
    "tracked flows": (*KERNEL, "-k", "conntrack"),
    "drift, incremental against full, commands, clean-up": (
        *KERNEL,
        "-k",
        "not nft and not conntrack",
    ),
    "packet matrix and SCTP associations, nftables and iptables": (
        "tests/e2e/test_matrix.py",
        "tests/e2e/test_sctp_associations.py",
    ),
    "ipvs: codec, recorded states, life, packet matrix, SCTP associations": ("tests/kernel/uml/inside",),
    IPVS_OVER_NFT: (
        "tests/kernel/uml/inside/test_ipvs_kernel_golden.py",
        "tests/kernel/uml/inside/test_ipvs_life.py",
    ),
}


def main() -> int:
    options = _arguments()
    groups = _chosen(options.groups)
    reason = boot.missing()
    if reason is not None:
        print(f"cannot boot kernels here: {reason}", file=sys.stderr)
        return 1
    for directory in ("src", "tests"):  # compiling is slow inside, and is lost there with the boot
        compileall.compile_dir(ROOT / directory, quiet=1)
    failed = False
    for suite in options.suites.split(","):
        kernel = fetched(suite, ROOT / ".kernels")
        for name in groups:
            row = {"debian": suite, **_run(kernel, name, options.pytest)}
            print("  ".join(f"{key}: {value}" for key, value in row.items()), flush=True)
            failed |= bool(row["failed"])
            if options.json:
                _keep(Path(options.json), row)
    return int(failed)


def _keep(file: Path, row: dict[str, Any]) -> None:
    """Put the row into the file, in place of an older one of the same tests on the same release's kernel."""
    kept = json.loads(file.read_text()) if file.exists() else []
    rows = {(one["debian"], one["tests"]): one for one in (*kept, row)}
    order = [(suite, name) for suite in SUITES for name in GROUPS]
    file.write_text(json.dumps([rows[key] for key in order if key in rows], indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kernel.qemu", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--suites", default=",".join(SUITES), help="Debian releases whose kernels to boot")
    parser.add_argument("--groups", default="", help="those whose name starts so; all unless given")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("pytest", nargs="*", help="further arguments for pytest, after --")
    return parser.parse_args()


def _chosen(prefixes: str) -> list[str]:
    wanted = prefixes.split(",")
    for prefix in wanted:
        if not any(name.startswith(prefix) for name in GROUPS):
            raise SystemExit(f"no group's name starts with {prefix!r}; there are: {'; '.join(GROUPS)}")
    return [name for name in GROUPS if name.startswith(tuple(wanted))]


def _run(kernel: Kernel, group: str, more: Sequence[str]) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pointsman-kernel-", dir="/var/tmp") as name:
        exchange = Path(name)
        try:
            boot.run(kernel, _script(group, more), exchange, timeout=BOOT_SECONDS)
        except boot.BootError as error:
            print(error, file=sys.stderr)
        counts, skipped = _results(exchange / "junit.xml")
        output = exchange / "output"
        if output.exists():
            kept = ROOT / ".kernels" / f"{kernel.release} {group.partition(':')[0]}.txt"
            shutil.copy(output, kept)
            if counts["failed"]:
                print(f"what pytest said is in {kept.relative_to(ROOT)}")
    return {
        "kernel": kernel.release,
        "tests": group,
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": "; ".join(f"{number} x {reason}" for reason, number in sorted(skipped.items())) or "none",
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


def _script(group: str, more: Sequence[str]) -> str:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--assert=plain", "--timeout=3000"),
        *("-o", "junit_family=xunit2", "--junit-xml=/mnt/junit.xml", *GROUPS[group], *more),
    ]
    exports = [f"export {_TIME_FACTOR}"]
    if any("uml" in word for word in GROUPS[group]):
        choice = f"export {OVERRIDE}={NFT}" if group == IPVS_OVER_NFT else CHOOSE_VARIANT
        exports += [f"export {_INSIDE}", choice]
    return "\n".join([f"cd {shlex.quote(str(ROOT))}", *exports, f"{shlex.join(command)} >/mnt/output 2>&1\n"])


def _results(report: Path) -> tuple[Counter[str], Counter[str]]:
    """How many passed and failed, and how often what was the reason for a skip; no report is a failure."""
    if not report.exists():
        return Counter(failed=1), Counter()
    counts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        skip = case.find("skipped")
        if skip is not None:
            skipped[skip.get("message", "")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        else:
            counts["passed"] += 1
    return counts, skipped


if __name__ == "__main__":
    raise SystemExit(main())
