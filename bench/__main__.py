"""Benchmarks: python -m bench NAME [OPTIONS], as root.

    python -m bench                    list them
    python -m bench process --help     options of one
    python -m bench process --save     keep the results in bench/results
    python -m bench all                run those of `make bench`, keep their results and update the documents
    python -m bench compare A B        what changed beyond noise between two commits
    python -m bench keep RELEASE       add the main figures of bench/results to bench/history
    python -m bench report [--check]   show the kept results in the documents

Everything runs in network namespaces of its own. With KUBE_PROXY_BINARY set, kube-proxy runs beside Pointsman where a benchmark
can do that; with KUBE_APISERVER_BINARY (and ETCD_BINARY) set, `process`, `compare`, `fleet` and `slo` use that API server.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

RESULTS = Path(__file__).parent / "results"


class Benchmark(msgspec.Struct, frozen=True):
    """A module with `run(options)`, which returns results for JSON, and optionally `add_arguments(parser)`."""

    module: str
    arguments: tuple[str, ...] = ()
    """Put before those of the command line."""
    in_all: bool = True


BENCHMARKS: Mapping[str, Benchmark] = {
    "nftables": Benchmark("nftables"),
    "nftables-drift": Benchmark("nftables", ("--drift",), in_all=False),
    "packets": Benchmark("packets"),
    "packets-ipvs": Benchmark("packets_ipvs"),
    "iptables": Benchmark("iptables"),
    "iptables-looks": Benchmark("iptables", ("--looks",), in_all=False),
    "ipvs": Benchmark("ipvs"),
    "process": Benchmark("process", ("--rounds", "3")),
    "process-large": Benchmark("process", ("--large",)),
    "sizing": Benchmark("process", ("--sizing",)),
    "compare": Benchmark("compare", in_all=False),
    "latency": Benchmark("latency"),
    "start": Benchmark("start"),
    "conntrack": Benchmark("conntrack"),
    "dns": Benchmark("dns"),
    "beside": Benchmark("beside"),
    "schedulers": Benchmark("schedulers"),
    "balancing": Benchmark("balancing"),
    "commands": Benchmark("commands"),
    "fleet": Benchmark("fleet"),
    "simulate": Benchmark("simulate", in_all=False),
    "slo": Benchmark("slo", in_all=False),
    "hostile": Benchmark("hostile", in_all=False),
    "faults": Benchmark("faults", in_all=False),
    "reliability": Benchmark("reliability.parts", in_all=False),
}


def run_benchmark(name: str, arguments: Sequence[str]) -> None:
    """Run one benchmark with the arguments of its command line."""
    benchmark = BENCHMARKS[name]
    module = importlib.import_module(f"bench.{benchmark.module}")
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--save", action="store_true", help=f"keep the results in bench/results/{name}.json")
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    options = parser.parse_args([*benchmark.arguments, *arguments])
    if options.save:
        options.json = RESULTS / f"{name}.json"
    results = module.run(options)
    if options.json is not None and results is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def run_all() -> None:
    for name, benchmark in BENCHMARKS.items():
        if benchmark.in_all:
            print(f"==> {name}", flush=True)
            run_benchmark(name, ["--save"])
    update_documents(check=False)


def update_documents(*, check: bool) -> int:
    from bench.report import update

    return update(check=check)


def main(argv: Sequence[str]) -> int:
    match argv:
        case [] | ["-h" | "--help"]:
            print(__doc__)
            for name, benchmark in BENCHMARKS.items():
                summary = (importlib.import_module(f"bench.{benchmark.module}").__doc__ or "").splitlines()[0]
                print(f"{name:16} {summary} {' '.join(benchmark.arguments)}".rstrip())
        case ["all"]:
            run_all()
        case ["keep", release]:
            from bench import releases, report

            print(releases.keep(release, report.load()))
        case ["report", *flags] if set(flags) <= {"--check"}:
            return update_documents(check=bool(flags))
        case [name, *arguments] if name in BENCHMARKS:
            run_benchmark(name, arguments)
        case _:
            print(
                f"unknown benchmark: {argv[0]}; choose from {', '.join(BENCHMARKS)}, all, keep, report",
                file=sys.stderr,
            )
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
