"""Entry points: `pointsman SUBCOMMAND` and `kube-proxy`, which is `pointsman run` under kube-proxy's name."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    del argv
    sys.stderr.write("pointsman: no sub-command is built yet\n")
    return 2


def kube_proxy_main(argv: Sequence[str] | None = None) -> int:
    return main(["run", *(sys.argv[1:] if argv is None else argv)])
