"""Every flag, in the order of the help text.

Help text, the /flagz page, docs/flags.md and the rules of precedence all come from this one table.
"""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.config.goflags import Flag
from pointsman.config.kube_proxy_flags import KUBE_PROXY_FLAGS
from pointsman.config.own_flags import OWN_FLAGS

FLAGS: tuple[Flag, ...] = (*KUBE_PROXY_FLAGS, *OWN_FLAGS)
BY_NAME: Mapping[str, Flag] = {flag.name: flag for flag in FLAGS}
