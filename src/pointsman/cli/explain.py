"""`pointsman explain`: why a Service answers, or does not, on this node."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pointsman.cli.arguments import (
    Parser,
    add_live,
    add_namespace,
    add_offline,
    add_output,
    create_parser,
    parse_offline,
    parse_seconds,
    plan_offline,
    reject_flags,
)
from pointsman.cli.control_client import ask
from pointsman.cli.output import print_answer, run_guarded
from pointsman.explain.answer import explain
from pointsman.explain.probes import add_probes, find_places
from pointsman.explain.service_port import Explanation
from pointsman.explain.target import EVERYWHERE, Question, parse_target
from pointsman.explain.text import render_explanation
from pointsman.machine.reach import reach
from pointsman.model.addresses import address_from_text

_ABOUT = """Explain which frontends a Service has on this node, which endpoints are used and why, what happens to the
client's address, whether the kernel agrees, and the likely cause when connections fail.

The target may be SERVICE, NAMESPACE/SERVICE, a DNS name such as web.shop.svc.cluster.local, a URL,
each with an optional :PORT (number or name); IP, IP:PORT, [IPv6]:PORT or :NODEPORT; the name or the address of a pod that
is an endpoint; each with an optional /tcp, /udp or /sctp. Asks the running proxy, or works offline with --manifests."""


def build_parser() -> Parser:
    made = create_parser("explain", _ABOUT)
    made.add_argument("target", help="what to explain")
    made.add_argument(
        "--from",
        dest="client",
        default="",
        help="pod, node, outside, an IP address or the name of a pod; default: all three kinds",
    )
    add_namespace(made, everywhere=EVERYWHERE)
    made.add_argument(
        "--probe",
        action="store_true",
        help="also connect from this host to every endpoint and to the frontends asked about",
    )
    made.add_argument(
        "--probe-source",
        type=_parse_source,
        default=b"",
        metavar="IP",
        help="connect from this address of the host",
    )
    made.add_argument(
        "--probe-seconds",
        type=parse_seconds,
        default=2.0,
        metavar="SECONDS",
        help="timeout of each connection; default 2",
    )
    made.add_argument("--no-kernel", action="store_true", help="do not compare with the kernel")
    add_output(made)
    add_live(made)
    add_offline(made, required=False)
    return made


def _parse_source(text: str) -> bytes:
    address = address_from_text(text)
    if address is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an IP address")
    return address


def main(argv: Sequence[str]) -> int:
    """Return exit status 0 when the target is healthy, 1 when not, 2 when the proxy does not answer."""
    made = build_parser()
    given, flags = parse_offline(made, argv)
    if not given.probe:
        reject_flags(made, given, "only with --probe", "probe_source", "probe_seconds")
    return run_guarded("explain", lambda: _explain(given, flags))


def _explain(given: argparse.Namespace, flags: Sequence[str]) -> int:
    explanation = _explain_offline(given, flags) if given.manifests is not None else _ask_live(given)
    if given.probe:
        places = find_places(explanation)
        attempts = reach(places, given.probe_seconds, given.probe_source)
        explanation = add_probes(explanation, dict(zip(places, attempts, strict=True)))
    print_answer(given, explanation, render_explanation)
    return 0 if explanation.is_healthy else 1


def _ask_live(given: argparse.Namespace) -> Explanation:
    parse_target(given.target)
    question = Question(given.target, given.namespace, given.client, kernel=not given.no_kernel)
    return ask(given.control_socket, "/explain", Explanation, question)


def _explain_offline(given: argparse.Namespace, flags: Sequence[str]) -> Explanation:
    _, planned = plan_offline("explain", given, flags)
    return explain(planned.view, parse_target(given.target, given.namespace), given.client)
