"""Arguments that commands share, and what is done with them: manifests, node, mode and the flags of `pointsman run`.

Imports that only offline work needs are inside functions, so that a question to the running proxy starts at once.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pointsman.cli.output import COLOUR_CHOICES, warn
from pointsman.config.mode_table import BY_PREFERENCE, MODES
from pointsman.files import CONTROL_SOCKET
from pointsman.model.addresses import Family

if TYPE_CHECKING:
    from pointsman.app.offline import Planned
    from pointsman.config.options import RunOptions
    from pointsman.machine.host_facts import LinuxMachine

T = TypeVar("T")

EXIT_STATUSES: Mapping[str, tuple[str, ...]] = {
    "run": ("stopped, or --cleanup removed everything", "the configuration or the machine prevents running"),
    "render": (
        "printed, or equal (--diff)",
        "different (--diff)",
        "the manifests or the kernel cannot be read",
    ),
    "explain": ("healthy", "partial, down or not found", "the question could not be answered"),
    "trace": (
        "the packet passed, and a connection made here was answered",
        "it did not",
        "nothing could be followed",
    ),
    "status": (
        "healthy, or degraded: something works less well than configured",
        "failing: a Service, a change or the whole node is not served",
        "no proxy could be asked",
    ),
    "list": ("listed", "nothing matches", "no proxy could be asked"),
    "top": ("shown", "nothing matches", "no proxy could be asked, or the kernel not read"),
    "events": ("shown", "nothing matches", "no proxy could be asked"),
    "simulate": (
        "simulated; with a change: no Service goes down",
        "a Service goes down, or a limit is exceeded",
        "nothing to simulate",
    ),
    "verify": ("equal", "different", "no proxy could be asked, or the kernel not read"),
    "report": (
        "written",
        "written without the part of the running proxy, which could not be asked",
        "not written",
    ),
    "cleanup": (
        "removed, or would be",
        "something could not be removed",
        "refused: a proxy is running, or not root",
    ),
    "demo": ("all connections behaved as expected", "some did not", "the lab cannot run here"),
    "check": (
        "valid",
        "invalid; with --to: something prevents the change",
        "with --to: could not be examined",
    ),
    "completion": ("printed",),
    "version": ("printed",),
    "kubectl pointsman": (
        "good on all nodes",
        "something is wrong, or nodes disagree",
        "some node could not be asked",
    ),
}
"""What 0 (good), 1 (not good) and 2 (could not tell) mean in each command; shown by its help and docs/commands.md.

Wrong arguments are 2 everywhere but in `run` and `check`, where they are an invalid configuration.
"""

MAX_SECONDS = 3600

_FAMILIES = {"ipv4": (Family.IPV4,), "ipv6": (Family.IPV6,), "both": (Family.IPV4, Family.IPV6)}


class _Paragraphs(argparse.HelpFormatter):
    """Keep the paragraphs of descriptions, filled to the width of the terminal; name the value once per option."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = (
            textwrap.fill(" ".join(paragraph.split()), width, initial_indent=indent, subsequent_indent=indent)
            for paragraph in text.split("\n\n")
        )
        return "\n\n".join(filled)


class Parser(argparse.ArgumentParser):
    """Parser of one sub-command."""

    takes_run_flags = False
    """It also takes the flags of `pointsman run`; see `parse_offline`."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse like argparse, and suggest the flag that was probably meant."""
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(map(self._with_suggestion, unknown))}")
        return given

    def _with_suggestion(self, argument: str) -> str:
        name = argument.partition("=")[0]
        if not name.startswith("--"):
            return argument
        from pointsman.text import did_you_mean

        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        if self.takes_run_flags:
            from pointsman.config.flags import BY_NAME

            known += [f"--{flag}" for flag in BY_NAME]
        return argument + did_you_mean(name, known)


def create_parser(command: str, about: str) -> Parser:
    meanings = "; ".join(f"{status} {meaning}" for status, meaning in enumerate(EXIT_STATUSES[command]))
    return Parser(
        prog=f"pointsman {command}",
        description=f"{about}\n\nExit status: {meanings}.",
        allow_abbrev=False,
        formatter_class=_Paragraphs,
    )


def add_offline(to: Parser, *, required: bool) -> None:
    """Add the flags of commands that plan manifests."""
    to.takes_run_flags = True
    to.add_argument(
        "--manifests",
        type=Path,
        action="append",
        required=required,
        help="file or directory with Services and EndpointSlices, or - for standard input; may be repeated",
    )
    to.add_argument(
        "--mode",
        "--proxy-mode",
        metavar="MODE",
        choices=tuple(reversed(MODES)),
        help=f"{', '.join(reversed(MODES))}; default: the configuration's, else {BY_PREFERENCE[0]}",
    )
    to.add_argument("--node", default="", help="name of the node; default: the only Node in the manifests")
    to.add_argument(
        "--family", type=str.lower, choices=tuple(_FAMILIES), default="both", help="IP family; default both"
    )
    to.epilog = "Also accepts the flags of `pointsman run`, such as --config and --cluster-cidr."


def add_namespace(to: argparse.ArgumentParser, *, everywhere: str = "") -> None:
    """Add -n and -A; `everywhere` is the namespace that means all."""
    to.add_argument("-n", "--namespace", default="", help="namespace of names without one")
    to.add_argument(
        "-A",
        "--all-namespaces",
        dest="namespace",
        action="store_const",
        const=everywhere,
        help="look in all namespaces",
    )


def add_selection(to: argparse.ArgumentParser, sorts: Collection[str] = ()) -> None:
    """Add what selects Services: names, -n, -A, -l, and where there is a choice --sort-by."""
    to.add_argument(
        "services",
        nargs="*",
        metavar="SERVICE",
        help="NAME or NAMESPACE/NAME; * and ? are wildcards; default: all",
    )
    add_namespace(to)
    to.add_argument(
        "-l", "--selector", default="", help="only Services with these labels, such as app=web,tier!=test"
    )
    if sorts:
        first = next(iter(sorts))
        to.add_argument(
            "--sort-by", choices=tuple(sorts), default=first, help=f"default {first}; worst or largest first"
        )


def is_narrowed(given: argparse.Namespace) -> bool:
    """Whether fewer than all Services were asked for."""
    return bool(given.services or given.namespace or given.selector)


def build_query(given: argparse.Namespace, kind: Callable[..., T], **more: object) -> T:
    """Return a `ServiceSelection` of that kind for what `add_selection` selected; raises BadSelector.

    Commas separate names as blanks do, and `svc/web` is `web`.
    """
    from pointsman.explain.target import drop_kind
    from pointsman.report.labels import parse_selector

    names = tuple(drop_kind(name) for word in given.services for name in word.split(",") if name)
    return kind(namespace=given.namespace, selector=parse_selector(given.selector), names=names, **more)


def add_live(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--control-socket",
        type=Path,
        default=CONTROL_SOCKET,
        metavar="PATH",
        help=f"control socket of the proxy; default {CONTROL_SOCKET}",
    )


class _Formats(tuple[str, ...]):
    """Choices of -o; one that ends in = is followed by anything."""

    __slots__ = ()

    def __contains__(self, given: object) -> bool:
        return any(given == one or (one.endswith("=") and str(given).startswith(one)) for one in self)


def add_output(to: argparse.ArgumentParser, *more: str) -> None:
    """Add -o, with these formats besides those that every answer has, and --color."""
    formats = _Formats(("text", "json", "yaml", *more))
    to.add_argument(
        "-o",
        "--output",
        choices=formats,
        default="text",
        metavar="FORMAT",
        help=f"{', '.join(formats)}; default text",
    )
    add_colour(to)


def add_no_headers(to: argparse.ArgumentParser) -> None:
    to.add_argument("--no-headers", action="store_true", help="omit headings")


def add_colour(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--color",
        choices=COLOUR_CHOICES,
        default="auto",
        help="default auto: colour on a terminal, unless NO_COLOR is set",
    )


def parse_seconds(text: str) -> float:
    """Parse a duration of a flag."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between 0 and {MAX_SECONDS}")
    return found


def parse_offline(made: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments of a command with `add_offline`, and the flags of `pointsman run` among them."""
    own, flags = split_run_flags(made, argv)
    given = made.parse_args(own)
    if given.manifests is None:
        reject_flags(made, given, "only with --manifests", "node", "family", "mode", also=flags)
    else:
        reject_flags(made, given, "not with --manifests", "control_socket", "no_kernel")
    return given, flags


def reject_flags(
    made: Parser, given: argparse.Namespace, why: str, *names: str, also: Sequence[str] = ()
) -> None:
    """End with an error when one of these flags was given, which would have no effect on the answer."""
    rejected = [
        f"--{name.replace('_', '-')}"
        for name in names
        if hasattr(given, name) and getattr(given, name) != made.get_default(name)
    ]
    if rejected or also:
        made.error(f"{why}: {' '.join((*rejected, *also))}")


def plan_offline(
    command: str,
    given: argparse.Namespace,
    flags: Sequence[str],
    *,
    machine: LinuxMachine | None = None,
) -> tuple[RunOptions, Planned]:
    """Plan the manifests, and warn about what is ignored in them; with a machine for its addresses and families.

    Raises ConfigError.
    """
    from pointsman.app.offline import plan_manifests

    options = _build_offline_options(given, flags)
    families, addresses = _FAMILIES[given.family], None
    if machine is not None:
        from pointsman.machine.host_facts import detect_families

        families = tuple(family for family in families if family in detect_families())
        addresses = {family: machine.local_addresses(family) for family in families}
    planned = plan_manifests(given.manifests, options, families=families, local_addresses=addresses)
    warn(command, [*options.warnings, *planned.problems])
    return options, planned


def _build_offline_options(given: argparse.Namespace, flags: Sequence[str]) -> RunOptions:
    """Return the configuration to plan with; the mode is decided. Raises ConfigError."""
    from pointsman.config.command_line import parse_run
    from pointsman.config.defaults import with_mode

    argv = [*flags, *([f"--hostname-override={given.node}"] if given.node else [])]
    options = parse_run(argv, program="pointsman", mode=given.mode)
    config = with_mode(options.config, options.config.mode or BY_PREFERENCE[0])
    return msgspec.structs.replace(options, config=config)


def split_run_flags(made: Parser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into the arguments that the command declares itself, and other flags of `pointsman run` with their values."""
    if not any(argument.startswith("--") for argument in argv):
        return list(argv), []
    from pointsman.config.flags import BY_NAME
    from pointsman.config.goflags import Kind

    own: list[str] = []
    flags: list[str] = []
    pending = list(reversed(argv))
    while pending:
        argument = pending.pop()
        name, equals, _ = argument.partition("=")
        is_own = not name.startswith("--") or name in made._option_string_actions
        flag = None if is_own else BY_NAME.get(name.removeprefix("--"))
        if flag is None:
            own.append(argument)
            continue
        flags.append(argument)
        if not equals and flag.kind is not Kind.BOOL and pending:
            flags.append(pending.pop())
    return own, flags
