"""`kubectl pointsman [NODE...] COMMAND`: commands run in the pods of proxies, by `kubectl exec`.

One node: its own output. Several nodes, or all: the answers of `status`, `list`, `explain`, `top` and `events` are merged; other
commands are shown node by node. `ui` forwards a port to a node's status page.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from pointsman.cli.arguments import add_colour, create_parser
from pointsman.cli.output import ERROR, deliver_output, print_answer
from pointsman.errors import PointsmanError
from pointsman.explain.service_port import Explanation, ServicePortReport
from pointsman.report.fleet import (
    FleetPort,
    FleetReport,
    merge_explanations,
    merge_history,
    merge_lists,
    merge_status,
    render_fleet,
)
from pointsman.report.history import HistoryReport
from pointsman.report.service_list import ServiceList
from pointsman.report.status import StatusReport
from pointsman.report.traffic import TrafficReport, merge_traffic
from pointsman.screen import Screen, lay_out
from pointsman.text import escape, find_similar

T = TypeVar("T")

_ABOUT = """Ask the Pointsman pods of a cluster. Without NODE all are asked. With one node the command runs there as if you were on the
node; with several, status, list and explain put the answers side by side and name the nodes that disagree, top adds up
the traffic, events are merged, and other commands are shown node by node.

COMMAND is a sub-command of pointsman that looks at a running proxy (status, list, explain, verify, top, ...), with its arguments; or
ui [NODE], which forwards a local port to the status page of one node and prints its address; or simulate, which lists the cluster
and runs here.

With one node the exit status is that of the command."""

UI: Final = "ui"
SIMULATE: Final = "simulate"
COMMANDS: Final = (
    "status",
    "list",
    "explain",
    "verify",
    "top",
    "events",
    "trace",
    "check",
    "version",
    UI,
    SIMULATE,
)
_CONTINUOUS: Final = ("trace",)
_METRICS_PORT: Final = 10249
_SELECTOR: Final = "app.kubernetes.io/name=pointsman"
_CONTAINERS: Final = ("pointsman", "kube-proxy")
_MAX_PARALLEL: Final = 16


class Pod(msgspec.Struct, frozen=True):
    """A pod that runs the proxy of a node."""

    node: str
    namespace: str
    name: str
    container: str
    running: bool


class Answer(msgspec.Struct, frozen=True):
    """What a command gave on one node."""

    status: int
    output: str
    errors: str


def build_parser() -> argparse.ArgumentParser:
    made = create_parser("kubectl pointsman", _ABOUT)
    made.prog = "kubectl pointsman"
    made.usage = "kubectl pointsman [flags] [NODE...] COMMAND [ARGUMENT...]"
    made.add_argument("--selector", default=_SELECTOR, help=f"labels of the pods; default {_SELECTOR}")
    made.add_argument("--kubeconfig", default="", help="for kubectl")
    made.add_argument("--context", default="", help="for kubectl")
    made.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="for each node; default 60"
    )
    add_colour(made)
    made.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="[NODE...] COMMAND",
        help="nodes, and the command to run there",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the plugin, as kubectl starts it."""
    arguments = sys.argv[1:] if argv is None else argv
    return deliver_output("kubectl pointsman", lambda: _run(arguments))


def _run(argv: Sequence[str]) -> int:
    made = build_parser()
    given = made.parse_args(argv)
    nodes, asked = split_arguments(given.arguments)
    if not asked:
        meant = [f"; did you mean {near}?" for word in nodes[-1:] for near in find_similar(word, COMMANDS)]
        made.error(f"name a command: {', '.join(COMMANDS)}{''.join(meant)}")
    if asked[0] == SIMULATE:
        from pointsman.cli import simulate

        access = [
            f"--{name}={value}" for name in ("kubeconfig", "context") if (value := getattr(given, name))
        ]
        return simulate.main([*access, *asked[1:]])
    try:
        return _ask(given, nodes, asked)
    except PointsmanError as error:
        sys.stderr.write(f"kubectl pointsman: {escape(str(error))}\n")
        return ERROR


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into nodes and the command with its arguments: the first that is a command ends the nodes."""
    place = next((at for at, each in enumerate(arguments) if each in COMMANDS), len(arguments))
    return list(arguments[:place]), list(arguments[place:])


def _ask(given: argparse.Namespace, nodes: Sequence[str], asked: Sequence[str]) -> int:
    kubectl = ["kubectl"]
    kubectl += [f"--kubeconfig={given.kubeconfig}"] if given.kubeconfig else []
    kubectl += [f"--context={given.context}"] if given.context else []
    nodes = [*nodes, *asked[1:]] if asked[0] == UI else nodes
    pods = choose_pods(_list_pods(kubectl, given.selector), nodes, given.selector)
    if asked[0] == UI:
        return _forward(kubectl, pods[0])
    if len(pods) == 1:
        return _run_on_node(kubectl, pods[0], asked)
    fleet = Fleet(kubectl, pods, given.timeout)
    if asked[0] == "top":
        return _show_traffic(fleet, asked[1:], given.color)
    merge = _MERGES.get(asked[0])
    shown = _parse_command(asked, given.color) if merge else given
    if asked[0] in _CONTINUOUS or getattr(shown, "watch", False):
        nodes_to_choose = ", ".join(pod.node for pod in pods)
        raise PointsmanError(f"{asked[0]} runs continuously; choose one node: {nodes_to_choose}")
    if merge is None:
        return _print_each(fleet.ask(asked))
    report = merge(fleet.ask([*asked, "-o", "json"]))
    _print_report(shown, report)
    return report.exit_status


def _parse_command(asked: Sequence[str], colour: str) -> argparse.Namespace:
    """Parse the arguments of a command here, so that help and errors are shown once."""
    module = importlib.import_module(f"pointsman.cli.{asked[0]}")
    parsed: argparse.Namespace = module.build_parser().parse_args(["--color", colour, *asked[1:]])
    return parsed


def _print_report(shown: argparse.Namespace, report: FleetReport) -> None:
    headings = not getattr(shown, "no_headers", False)
    ports = [row.port for row in report.rows if isinstance(row, FleetPort)]
    if shown.output.startswith(("name", "custom-columns=")):
        from pointsman.cli.list import create_table, render_ports

        sys.stdout.write(render_ports(shown, create_table(shown), ports))
        headings = False
    else:
        print_answer(shown, report, partial(render_fleet, headings=headings))
    for node, why in () if headings else report.unanswered.items():
        sys.stderr.write(f"kubectl pointsman: {escape(f'{node} could not be asked: {why}')}\n")


def _show_traffic(fleet: Fleet, arguments: Sequence[str], colour: str) -> int:
    """Add up the traffic of the nodes, once, again and again, or interactively."""
    from pointsman.cli import interactive_top, top

    given = top.parse_arguments(["--color", colour, *arguments])
    narrowed = ["--namespace", given.namespace] if given.namespace else []
    narrowed += ["--selector", given.selector] if given.selector else []
    unanswered: dict[str, str] = {}

    def read(delay: float) -> TrafficReport:
        asked = ["top", *given.services, *narrowed, "--delay", str(delay), "--once", "-o", "json"]
        good, bad = decode_answers(fleet.ask(asked), TrafficReport)
        unanswered.update(bad)
        if not good:
            raise PointsmanError("; ".join(f"{node}: {why}" for node, why in bad.items()))
        notes = tuple(f"{node} could not be asked: {why}" for node, why in bad.items())
        merged = merge_traffic(good)
        return msgspec.structs.replace(merged, notes=(*notes, *merged.notes))

    def explain(port: ServicePortReport) -> Callable[[Screen], str]:
        asked = ["explain", f"{port.name}/{port.protocol.lower()}", "-o", "json"]
        return partial(render_fleet, _MERGES["explain"](fleet.ask(asked)))

    if top.is_interactive(given):
        interactive_top.run_view(given, read, explain)
        return 0
    for _ in range(given.count) if given.count else itertools.count():
        top.print_report(given, read(given.delay))
    return ERROR if unanswered else 0


def _forward(kubectl: Sequence[str], pod: Pod) -> int:
    """Forward a free local port to the status page of the node, until Ctrl-C."""
    where = ["--namespace", pod.namespace, f"pod/{pod.name}", f":{_METRICS_PORT}"]
    with subprocess.Popen([*kubectl, "port-forward", *where], stdout=subprocess.PIPE, text=True) as forward:
        assert forward.stdout is not None
        for line in forward.stdout:
            address = re.search(r"Forwarding from (127\.0\.0\.1:\d+)", line)
            if address:
                sys.stdout.write(f"{pod.node}: http://{address[1]}/ until Ctrl-C\n")
                sys.stdout.flush()
    return ERROR if forward.returncode else 0


def choose_pods(pods: Sequence[Pod], nodes: Sequence[str], selector: str) -> list[Pod]:
    """One pod per node asked about, the running one where there are two; raises PointsmanError when a node has none."""
    by_node: dict[str, Pod] = {}
    for pod in sorted(pods, key=lambda pod: (pod.running, pod.name)):
        by_node[pod.node] = pod
    if not by_node:
        raise PointsmanError(
            f"no pod with the labels {selector} runs on any node; name others with --selector"
        )
    missing = [node for node in nodes if node not in by_node]
    if missing:
        known = ", ".join(sorted(by_node))
        raise PointsmanError(
            f"{missing[0]} is neither a command nor a node with a Pointsman pod; nodes: {known}"
        )
    return [by_node[node] for node in (nodes or sorted(by_node))]


def parse_pods(text: bytes) -> list[Pod]:
    """Return the pods of `kubectl get pods -o json` that have a node."""
    items: list[dict[str, Any]] = msgspec.json.decode(text)["items"]
    found = []
    for item in items:
        spec, meta = item["spec"], item["metadata"]
        names = [container["name"] for container in spec["containers"]]
        container = next((name for name in _CONTAINERS if name in names), names[0])
        if spec.get("nodeName"):
            running = item.get("status", {}).get("phase") == "Running"
            found.append(Pod(spec["nodeName"], meta["namespace"], meta["name"], container, running))
    return found


def _list_pods(kubectl: Sequence[str], selector: str) -> list[Pod]:
    listing = [*kubectl, "get", "pods", "--all-namespaces", "--selector", selector, "--output=json"]
    try:
        done = subprocess.run(listing, capture_output=True, check=False)
    except FileNotFoundError:
        raise PointsmanError("kubectl is not installed, or not on the PATH") from None
    if done.returncode:
        errors = done.stderr.decode(errors="replace").strip().splitlines() or [
            f"exit status {done.returncode}"
        ]
        raise PointsmanError(f"kubectl cannot list pods: {errors[-1]}")
    return parse_pods(done.stdout)


def _build_exec(kubectl: Sequence[str], pod: Pod, asked: Sequence[str], *options: str) -> list[str]:
    where = ["--namespace", pod.namespace, pod.name, "--container", pod.container]
    return [*kubectl, "exec", *options, *where, "--", "pointsman", *asked]


def _run_on_node(kubectl: Sequence[str], pod: Pod, asked: Sequence[str]) -> int:
    """Run the command in the pod, on the terminal if there is one."""
    options = ["--stdin", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    sys.stdout.flush()
    return subprocess.run(_build_exec(kubectl, pod, asked, *options), check=False).returncode


class Fleet:
    """The pods that are asked, all at once."""

    def __init__(self, kubectl: Sequence[str], pods: Sequence[Pod], seconds: float) -> None:
        self._kubectl, self._pods, self._seconds = kubectl, pods, seconds

    def ask(self, asked: Sequence[str]) -> dict[str, Answer]:
        """Return what each node printed."""
        with ThreadPoolExecutor(min(_MAX_PARALLEL, len(self._pods))) as pool:
            answers = pool.map(lambda pod: self._ask_pod(pod, asked), self._pods)
            return dict(zip((pod.node for pod in self._pods), answers, strict=True))

    def _ask_pod(self, pod: Pod, asked: Sequence[str]) -> Answer:
        command = _build_exec(self._kubectl, pod, asked)
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=self._seconds)
        except subprocess.TimeoutExpired:
            return Answer(ERROR, "", f"no answer within {self._seconds:g} s")
        output, errors = (data.decode(errors="replace") for data in (done.stdout, done.stderr))
        return Answer(done.returncode, output, errors.strip())


def decode_answers(answers: Mapping[str, Answer], kind: type[T]) -> tuple[dict[str, T], dict[str, str]]:
    """Return the answers by node, and why there is none from the others."""
    good: dict[str, T] = {}
    bad: dict[str, str] = {}
    for node, answer in answers.items():
        try:
            good[node] = msgspec.json.decode(answer.output, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            lines = answer.errors.splitlines()
            bad[node] = lines[-1] if lines else f"its answer is of another version ({error})"
    return good, bad


_MERGES: Mapping[str, Callable[[Mapping[str, Answer]], FleetReport]] = {
    "status": lambda answers: merge_status(*decode_answers(answers, StatusReport)),
    "list": lambda answers: merge_lists(*decode_answers(answers, ServiceList)),
    "explain": lambda answers: merge_explanations(*decode_answers(answers, Explanation)),
    "events": lambda answers: merge_history(*decode_answers(answers, HistoryReport)),
}


def _print_each(answers: Mapping[str, Answer]) -> int:
    for node, answer in answers.items():
        sys.stdout.write(lay_out([f"--- {node}", *answer.output.splitlines(), *answer.errors.splitlines()]))
    return max(answer.status for answer in answers.values())


if __name__ == "__main__":
    sys.exit(main())
