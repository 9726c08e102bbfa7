"""The options of `run` as one frozen value: the configuration, and what only flags set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import msgspec

from pointsman.config.types import KubeProxyConfiguration
from pointsman.files import CONTROL_SOCKET, RUN_DIRECTORY
from pointsman.model.balancing import BalancingDefaults

KUBE_PROXY = "kube-proxy"


class OneShot(msgspec.Struct, frozen=True, kw_only=True):
    """What to do instead of running."""

    help: bool = False
    version: str = ""
    """Empty, `true` or `raw`."""
    check: bool = False
    cleanup: bool = False
    init_only: bool = False
    write_config_to: Path | None = None


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """Where the process keeps its files and finds those of the host."""

    state_dir: Path = RUN_DIRECTORY
    host_root: Path = Path("/")
    control_socket_flag: str | None = None
    """None where it was not given."""

    @property
    def control_socket(self) -> Path | None:
        """Below `state_dir` unless a flag names another place, or none by an empty one."""
        if self.control_socket_flag is None:
            return self.state_dir / CONTROL_SOCKET.name
        return Path(self.control_socket_flag) if self.control_socket_flag else None


class SecureServing(msgspec.Struct, frozen=True, kw_only=True):
    """TLS and authentication of the served ports."""

    metrics: str = ""
    """Clients of the metrics port that authenticate: `remote` or `all`; empty without TLS there."""
    health: bool = False
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    audiences: tuple[str, ...] = ()
    """Accepted audiences of tokens; empty means that of the API server."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed command line of `run`. `Flag.option` names the attribute that a flag sets."""

    program: str
    config: KubeProxyConfiguration
    """Defaulted and validated; `mode` is empty only where the mode is still to be picked (see `with_mode`)."""
    mode_explicit: bool = False
    """A flag or the file names the mode."""
    config_file: Path | None = None
    master: str = ""
    manifests: Path | None = None
    once: OneShot = OneShot()
    paths: Paths = Paths()
    service_metrics: bool = False
    service_metrics_limit: int = 1000
    wait_for_instance: bool = False
    drain_period: timedelta = timedelta()
    """How long load balancers get to stop choosing this node between SIGTERM and the end."""
    probe_addresses: tuple[str, ...] = ()
    """Service addresses of our own for the datapath probe."""
    node_condition: bool = False
    remove_startup_taint: bool = False
    external_ip_allow_cidrs: tuple[str, ...] = ()
    balancing: BalancingDefaults = BalancingDefaults()
    serving: SecureServing = SecureServing()
    warnings: tuple[str, ...] = ()
    flags_set: Mapping[str, str] = {}
    """The given flags as text, for /flagz."""
