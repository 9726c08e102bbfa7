"""`pointsman run`, and `kube-proxy`: program this node's Services until stopped."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.cli.output import deliver_output
from pointsman.cli.preamble import parse_options
from pointsman.machine.settings import limit_arenas, raise_descriptor_limit, relax_gc


def main(argv: Sequence[str], *, program: str = "pointsman") -> int:
    """Exit status: 0 after a stop or clean-up, 1 when the configuration or the machine prevents running."""
    options = deliver_output(program, lambda: parse_options(argv, program=program))
    if isinstance(options, int):
        return options
    state_dir = options.paths.state_dir
    if options.once.cleanup:
        from pointsman.cli.cleanup import clean_up_like_kube_proxy

        return deliver_output(program, lambda: clean_up_like_kube_proxy(program, state_dir))
    limit_arenas()
    raise_descriptor_limit()
    from pointsman.app.host_preparation import initialise
    from pointsman.app.supervisor import serve

    if options.once.init_only:
        return initialise(options)
    relax_gc()
    return serve(argv, options)
