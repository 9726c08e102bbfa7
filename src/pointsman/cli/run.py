"""`pointsman run`, and `kube-proxy`: program this node's Services until stopped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pointsman.cli.output import deliver_output, detect_screen
from pointsman.cli.version import render_version
from pointsman.config.command_line import parse_run
from pointsman.config.flags import render_help
from pointsman.config.load import config_to_yaml
from pointsman.config.mode_table import BY_PREFERENCE
from pointsman.config.options import KUBE_PROXY, RunOptions
from pointsman.errors import ConfigError
from pointsman.machine.settings import limit_arenas, raise_descriptor_limit, relax_gc
from pointsman.text import format_count


def main(argv: Sequence[str], *, program: str = "pointsman") -> int:
    """Exit status: 0 after a stop or clean-up, 1 when the configuration or the machine prevents running."""
    options = deliver_output(program, lambda: parse_options(argv, program=program))
    if isinstance(options, int):
        return options
    state_dir = options.paths.state_dir
    if options.once.cleanup:
        from pointsman.cli.cleanup import clean_up_like_kube_proxy

        excluded = options.config.ipvs.exclude_cidrs
        return deliver_output(program, lambda: clean_up_like_kube_proxy(program, state_dir, excluded))
    limit_arenas()
    raise_descriptor_limit()
    from pointsman.app.host_preparation import initialise
    from pointsman.app.supervisor import serve

    if options.once.init_only:
        return initialise(options)
    relax_gc()
    return serve(argv, options)


def parse_options(argv: Sequence[str], *, program: str) -> RunOptions | int:
    """Return the options to run with, or the exit status of help, version, and of writing or checking the configuration.

    Everything wrong is listed, so that a bad configuration is found by a pipeline and not by a node.
    """
    try:
        options = parse_run(argv, program=program)
    except ConfigError as invalid:
        _warn(program, invalid.warnings)
        for problem in invalid.problems:
            sys.stderr.write(f"{program}: {problem}\n")
        sys.stderr.write(
            f"{program}: {format_count(len(invalid.problems), 'problem')} found; nothing was changed\n"
        )
        return 1
    if options.once.help:
        shown = program if program == KUBE_PROXY else f"{program} run"
        sys.stdout.write(render_help(shown, detect_screen().width))
        return 0
    if options.once.version:
        sys.stdout.write(render_version(options.once.version))
        return 0
    if options.once.write_config_to is not None:
        return _write(options)
    if options.once.check:
        _warn(options.program, options.warnings)
        sys.stdout.write(render_effective(options))
        return 0
    return options


def render_effective(options: RunOptions) -> str:
    """Return the effective configuration as YAML, with a comment where the mode is not chosen yet."""
    text = config_to_yaml(options.config)
    if not options.config.mode:
        text = f"# mode is empty: {', else '.join(BY_PREFERENCE)}, whichever the kernel can do\n{text}"
    return text


def _write(options: RunOptions) -> int:
    assert options.once.write_config_to is not None
    _warn(options.program, options.warnings)
    try:
        options.once.write_config_to.write_text(config_to_yaml(options.config), encoding="utf-8")
    except OSError as failed:
        sys.stderr.write(
            f"{options.program}: --write-config-to: cannot write {options.once.write_config_to}: {failed.strerror}\n"
        )
        return 1
    return 0


def _warn(program: str, warnings: Sequence[str]) -> None:
    for warning in warnings:
        sys.stderr.write(f"{program}: warning: {warning}\n")
