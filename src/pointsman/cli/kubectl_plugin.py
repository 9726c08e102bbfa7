"""`kubectl pointsman [NODE...] COMMAND`: the commands of the proxies in a cluster, asked through `kubectl exec`.

One node: its own answer, as on the node itself. Several nodes, or all: `status`, `list` and `explain` put their answers side by
side and say which nodes disagree; other commands are shown node by node.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from pointsman.cli.arguments import ERROR, add_colour, parser, print_json
from pointsman.cli.output import delivered, screen
from pointsman.errors import PointsmanError
from pointsman.explain.service_port import Explanation
from pointsman.report.fleet import FleetReport, fleet_explain, fleet_list, fleet_status, fleet_text
from pointsman.report.service_list import ServiceList
from pointsman.report.status import StatusReport
from pointsman.screen import laid_out
from pointsman.text import escape, find_similar

_ABOUT = """Ask the Pointsman pods of a cluster. Without NODE all are asked. With one node the command runs there as if you were on the
node; with several, status, list and explain put the answers side by side and name the nodes that disagree, and other commands are
shown node by node.

COMMAND is a sub-command of pointsman that looks at a running proxy (status, list, explain, verify, top, ...), with its arguments.

With one node the exit status is that of the command."""

COMMANDS: Final = ("status", "list", "explain", "verify", "top", "trace", "check", "version")
_CONTINUOUS: Final = ("top", "trace")
_SELECTOR: Final = "app.kubernetes.io/name=pointsman"
_CONTAINERS: Final = ("pointsman", "kube-proxy")
_AT_A_TIME: Final = 16


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


def command() -> argparse.ArgumentParser:
    made = parser("kubectl pointsman", _ABOUT)
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
    """The plugin as kubectl starts it."""
    arguments = sys.argv[1:] if argv is None else argv
    return delivered("kubectl pointsman", lambda: _run(arguments))


def _run(argv: Sequence[str]) -> int:
    made = command()
    given = made.parse_args(argv)
    nodes, asked = split_arguments(given.arguments)
    if not asked:
        meant = [f"; did you mean {near}?" for word in nodes[-1:] for near in find_similar(word, COMMANDS)]
        made.error(f"name a command: {', '.join(COMMANDS)}{''.join(meant)}")
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
    pods = chosen_pods(_pods(kubectl, given.selector), nodes, given.selector)
    if len(pods) == 1:
        return _pass_through(kubectl, pods[0], asked)
    runs_on = asked[0] in _CONTINUOUS or "-w" in asked or "--watch" in asked
    if runs_on:
        raise PointsmanError(
            f"{asked[0]} runs continuously; choose one node: {', '.join(pod.node for pod in pods)}"
        )
    merge = _MERGES.get(asked[0])
    output, colour, rest = _presentation(asked, given.color)
    if merge is None or output not in ("", "text", "wide", "json"):
        return _one_after_the_other(_all_answers(kubectl, pods, asked, given.timeout))
    answers = _all_answers(kubectl, pods, [*rest, "-o", "json"], given.timeout)
    report = merge(answers)
    if output == "json":
        print_json(report)
    else:
        sys.stdout.write(fleet_text(report, screen(colour)))
    return report.exit_status


def chosen_pods(pods: Sequence[Pod], nodes: Sequence[str], selector: str) -> list[Pod]:
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


def pods_from_json(text: bytes) -> list[Pod]:
    """The pods of `kubectl get pods -o json` that have a node."""
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


def _pods(kubectl: Sequence[str], selector: str) -> list[Pod]:
    listing = [*kubectl, "get", "pods", "--all-namespaces", "--selector", selector, "--output=json"]
    try:
        done = subprocess.run(listing, capture_output=True, check=False)
    except FileNotFoundError:
        raise PointsmanError("kubectl is not installed, or not on the PATH") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise PointsmanError(f"kubectl cannot list pods: {said[-1] if said else 'it does not say why'}")
    return pods_from_json(done.stdout)


def _exec(kubectl: Sequence[str], pod: Pod, asked: Sequence[str], *options: str) -> list[str]:
    where = ["--namespace", pod.namespace, pod.name, "--container", pod.container]
    return [*kubectl, "exec", *options, *where, "--", "pointsman", *asked]


def _pass_through(kubectl: Sequence[str], pod: Pod, asked: Sequence[str]) -> int:
    """As if typed on the node, in the terminal that there is."""
    options = ["--stdin", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    sys.stdout.flush()
    return subprocess.run(_exec(kubectl, pod, asked, *options), check=False).returncode


def _all_answers(
    kubectl: Sequence[str], pods: Sequence[Pod], asked: Sequence[str], seconds: float
) -> dict[str, Answer]:
    def one(pod: Pod) -> Answer:
        try:
            done = subprocess.run(
                _exec(kubectl, pod, asked), capture_output=True, check=False, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return Answer(ERROR, "", f"no answer within {seconds:g} s")
        return Answer(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace").strip(),
        )

    with ThreadPoolExecutor(min(_AT_A_TIME, len(pods))) as pool:
        return dict(zip((pod.node for pod in pods), pool.map(one, pods), strict=True))


def _presentation(asked: Sequence[str], colour: str) -> tuple[str, str, list[str]]:
    """The output format and the colours asked for, which concern the reader here, and the rest of the command."""
    shown = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    shown.add_argument("-o", "--output", default="")
    shown.add_argument("--color", default=colour)
    known, rest = shown.parse_known_args(list(asked))
    return str(known.output), str(known.color), rest


def merged(
    answers: Mapping[str, Answer],
    kind: type[Any],
    merge: Callable[[Mapping[str, Any], Mapping[str, str]], FleetReport],
) -> FleetReport:
    """The answers decoded and put side by side; what cannot be decoded counts as no answer."""
    good: dict[str, Any] = {}
    bad: dict[str, str] = {}
    for node, answer in answers.items():
        try:
            good[node] = msgspec.json.decode(answer.output, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            lines = answer.errors.splitlines()
            bad[node] = lines[-1] if lines else f"its answer is of another version ({error})"
    return merge(good, bad)


_MERGES: Mapping[str, Callable[[Mapping[str, Answer]], FleetReport]] = {
    "status": lambda answers: merged(answers, StatusReport, fleet_status),
    "list": lambda answers: merged(answers, ServiceList, fleet_list),
    "explain": lambda answers: merged(answers, Explanation, fleet_explain),
}


def _one_after_the_other(answers: Mapping[str, Answer]) -> int:
    for node, answer in answers.items():
        sys.stdout.write(laid_out([f"--- {node}", *answer.output.splitlines(), *answer.errors.splitlines()]))
    return max(answer.status for answer in answers.values())


if __name__ == "__main__":
    sys.exit(main())
