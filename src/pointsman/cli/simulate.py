"""`pointsman simulate`: where the connections of a whole cluster go, and what a change would do to them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pointsman.cli.arguments import Parser, add_output, add_selection, build_query, create_parser, is_narrowed
from pointsman.cli.cluster import add_cluster_source, load_manifests, read_cluster, reject_two_sources
from pointsman.cli.output import print_answer, run_guarded
from pointsman.errors import ConfigError
from pointsman.text import escape

if TYPE_CHECKING:
    from pointsman.simulate.cluster import ClientWeights, Cluster
    from pointsman.simulate.report import SimulationReport
    from pointsman.simulate.traffic import Simulation

_ABOUT = """Say where connections to Services go in a whole cluster: the share of each endpoint, how much stays on a node or in a
zone, and which clients get no answer. With a change, say what it would do, before it is made. Every node plans as its proxy
would; nothing is changed.

Reads manifests, or lists a cluster once with kubectl's configuration. Nothing is rescheduled after a removal: this is what
happens until new pods are ready. External clients are distributed equally over the nodes that a load balancer uses."""

_MAX_WEIGHT_FILE_BYTES = 16 << 20


def build_parser() -> Parser:
    made = create_parser("simulate", _ABOUT)
    add_selection(made)
    add_cluster_source(made)
    made.add_argument(
        "--clients",
        default="nodes",
        metavar="nodes|pods|FILE",
        help="distribution of clients: equal per node (the default), by the number of pods on each node that are endpoints, or"
        " by the weights in a YAML file with `nodes` and `zones`",
    )
    change = made.add_argument_group("change")
    change.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="KIND/NAME",
        help="node/NAME, zone/NAME or pod/NAMESPACE/NAME; may be repeated, like all changes",
    )
    change.add_argument(
        "--scale",
        action="append",
        default=[],
        metavar="NAMESPACE/NAME=COUNT",
        help="change the number of endpoints of a Service",
    )
    change.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAMESPACE/NAME:FIELD=VALUE",
        help="change trafficDistribution, internalTrafficPolicy or externalTrafficPolicy of a Service",
    )
    change.add_argument(
        "--apply",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="file with new or changed objects",
    )
    limits = made.add_argument_group("limits")
    limits.add_argument(
        "--max-skew",
        type=_parse_limit,
        default=0.0,
        metavar="FACTOR",
        help="highest allowed share of an endpoint, as a multiple of its fair share",
    )
    limits.add_argument(
        "--max-cross-zone",
        type=_parse_limit,
        default=0.0,
        metavar="PERCENT",
        help="highest allowed share of connections that cross zones",
    )
    limits.add_argument(
        "--growth",
        type=_parse_limit,
        default=1.5,
        metavar="FACTOR",
        help="list endpoints whose connections grow by more than this factor; default 1.5",
    )
    add_output(made, "svg", "html")
    return made


def _parse_limit(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return found


def main(argv: Sequence[str]) -> int:
    """Return exit status 0, 1 when a Service goes down or a limit is exceeded, 2 when there is nothing to simulate."""
    made = build_parser()
    given = made.parse_args(argv)
    reject_two_sources(made, given)
    return run_guarded("simulate", lambda: _simulate(given))


def _simulate(given: argparse.Namespace) -> int:
    from pointsman.report.labels import ServiceLabels, ServiceSelection
    from pointsman.simulate.report import Limits, build_report
    from pointsman.simulate.traffic import simulate
    from pointsman.simulate.whatif import WhatIf

    cluster = read_cluster("simulate", given)
    if not cluster.nodes:
        raise ConfigError(["there are no Nodes: where clients and zones are is not known"])
    selection = build_query(given, ServiceSelection)
    change = WhatIf(
        load_manifests("simulate", given.apply) if given.apply else (), given.set, given.scale, given.remove
    )

    def run(one: Cluster) -> Simulation:
        labels = ServiceLabels(one.services.values())
        return simulate(one, _weigh(one, given.clients), lambda name: selection.matches(name.key, labels))

    current = run(cluster)
    changed = run(change.apply_to(cluster)) if change else None
    if not current.traffic and (changed is None or not changed.traffic):
        raise ConfigError(["no Service matches" if is_narrowed(given) else "there are no Services"])
    report = build_report(current, changed, Limits(given.growth, given.max_skew, given.max_cross_zone / 100))
    _print(given, report)
    return 0 if report.is_safe else 1


def _print(given: argparse.Namespace, report: SimulationReport) -> None:
    if given.output in ("svg", "html"):
        from pointsman.simulate.picture import render_html, render_svg

        sys.stdout.write((render_svg if given.output == "svg" else render_html)(report))
    else:
        from pointsman.simulate.text import render_report

        print_answer(given, report, render_report)


def _weigh(cluster: Cluster, clients: str) -> ClientWeights:
    from pointsman.simulate import cluster as weights

    if clients == "nodes":
        return weights.weigh_nodes(cluster)
    if clients == "pods":
        return weights.weigh_pods(cluster)
    import msgspec

    from pointsman.files import read_file
    from pointsman.yamltext import load_documents

    name = escape(clients)
    try:
        documents = load_documents(read_file(Path(clients), _MAX_WEIGHT_FILE_BYTES))
        given = msgspec.convert(documents[0] if documents else {}, weights.WeightFile, strict=False)
    except OSError as error:
        raise ConfigError([f"--clients {name}: {error.strerror}; must be nodes, pods or a file"]) from error
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError([f"--clients {name}: {error}"]) from error
    return weights.weigh_by_file(cluster, given, name)
