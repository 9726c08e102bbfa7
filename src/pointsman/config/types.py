"""KubeProxyConfiguration v1alpha1 as frozen values, every field, with upstream's names in files.

The values here are the defaults of an empty file, except the two bind addresses, which depend on `bind_address`
(see `defaults`). Several settings live once per mode; `sync_period` and friends read the block of the chosen mode,
as kube-proxy does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec

from pointsman.config.mode_table import IPTABLES, MODES, ModeRow
from pointsman.obs.log import LogSettings

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
UInt32 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Quantity = Annotated[int, msgspec.Meta(extra={"quantity": True})]
"""A number of bytes, written as a Kubernetes quantity."""
DurationOrNanoseconds = Annotated[timedelta, msgspec.Meta(extra={"nanoseconds": True})]
"""A duration that older files may give as an integer of nanoseconds."""

_ACRONYMS = {
    "cluster_cidr": "clusterCIDR",
    "exclude_cidrs": "excludeCIDRs",
    "strict_arp": "strictARP",
    "enable_dsr": "enableDSR",
}


def _to_upstream_name(field: str) -> str:
    first, *others = field.split("_")
    return _ACRONYMS.get(field) or first + "".join(word.capitalize() for word in others)


class ConfigBlock(msgspec.Struct, frozen=True, kw_only=True, rename=_to_upstream_name):
    """A block of the configuration; its encoded names are upstream's."""


class ClientConnection(ConfigBlock, frozen=True, kw_only=True):
    """How to reach the API server."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/vnd.kubernetes.protobuf"
    qps: float = 5.0
    burst: Int32 = 10


class OutputRouting(ConfigBlock, frozen=True, kw_only=True):
    """Where the messages of one log format go."""

    split_stream: bool = False
    info_buffer_size: Quantity = 0


class FormatOptions(ConfigBlock, frozen=True, kw_only=True):
    """Options per log format."""

    text: OutputRouting = OutputRouting()
    json: OutputRouting = OutputRouting()


class VModuleItem(ConfigBlock, frozen=True, kw_only=True):
    """Verbosity of the source files whose base name matches a glob pattern."""

    file_pattern: str = ""
    verbosity: UInt32 = 0


class Logging(ConfigBlock, frozen=True, kw_only=True):
    """Log format and verbosity."""

    format: str = "text"
    flush_frequency: DurationOrNanoseconds = timedelta(seconds=5)
    verbosity: UInt32 = 0
    vmodule: tuple[VModuleItem, ...] = ()
    options: FormatOptions = FormatOptions()

    def to_settings(self) -> LogSettings:
        """Return the settings for `pointsman.obs.log.configure`."""
        routing = self.options.json if self.format == "json" else self.options.text
        return LogSettings(
            format=self.format,
            verbosity=self.verbosity,
            vmodule=tuple((item.file_pattern, item.verbosity) for item in self.vmodule),
            split_stream=routing.split_stream,
            info_buffer_size=routing.info_buffer_size,
            flush_seconds=self.flush_frequency.total_seconds(),
        )


class IPTables(ConfigBlock, frozen=True, kw_only=True):
    """Settings of iptables mode; ipvs mode shares the masquerade ones."""

    masquerade_bit: Int32 = 14
    masquerade_all: bool = False
    localhost_node_ports: bool = True
    sync_period: timedelta = timedelta(seconds=30)
    min_sync_period: timedelta = timedelta(0)


class IPVirtualServer(ConfigBlock, frozen=True, kw_only=True):
    """Settings of ipvs mode."""

    sync_period: timedelta = timedelta(seconds=30)
    min_sync_period: timedelta = timedelta(0)
    scheduler: str = ""
    exclude_cidrs: tuple[str, ...] = ()
    strict_arp: bool = False
    tcp_timeout: timedelta = timedelta(0)
    tcp_fin_timeout: timedelta = timedelta(0)
    udp_timeout: timedelta = timedelta(0)


class NFTables(ConfigBlock, frozen=True, kw_only=True):
    """Settings of nftables mode."""

    masquerade_bit: Int32 = 14
    masquerade_all: bool = False
    sync_period: timedelta = timedelta(seconds=30)
    min_sync_period: timedelta = timedelta(0)


class Winkernel(ConfigBlock, frozen=True, kw_only=True):
    """Settings of Windows nodes: read and written back, without effect here."""

    network_name: str = ""
    source_vip: str = ""
    enable_dsr: bool = False
    root_hns_endpoint_name: str = ""
    forward_health_check_vip: bool = False


class DetectLocal(ConfigBlock, frozen=True, kw_only=True):
    """What recognises local pods in the interface modes of `detect_local_mode`."""

    bridge_interface: str = ""
    interface_name_prefix: str = ""


class Conntrack(ConfigBlock, frozen=True, kw_only=True):
    """Connection tracking limits; zero leaves the system's value alone."""

    max_per_core: Int32 = 32 * 1024
    min: Int32 = 128 * 1024
    tcp_established_timeout: timedelta = timedelta(hours=24)
    tcp_close_wait_timeout: timedelta = timedelta(hours=1)
    tcp_be_liberal: bool = False
    udp_timeout: timedelta = timedelta(0)
    udp_stream_timeout: timedelta = timedelta(0)


class KubeProxyConfiguration(ConfigBlock, frozen=True, kw_only=True):
    """All fields of a configuration file. An empty bind address means: do not serve."""

    feature_gates: dict[str, bool] = {}
    client_connection: ClientConnection = ClientConnection()
    logging: Logging = Logging()
    hostname_override: str = ""
    bind_address: str = "0.0.0.0"  # noqa: S104  no socket binds to it; it names the node's address
    healthz_bind_address: str = ""
    metrics_bind_address: str = ""
    bind_address_hard_fail: bool = False
    enable_profiling: bool = False
    show_hidden_metrics_for_version: str = ""
    mode: str = ""
    iptables: IPTables = IPTables()
    ipvs: IPVirtualServer = IPVirtualServer()
    nftables: NFTables = NFTables()
    winkernel: Winkernel = Winkernel()
    detect_local_mode: str = ""
    detect_local: DetectLocal = DetectLocal()
    cluster_cidr: str = ""
    node_port_addresses: tuple[str, ...] = ()
    oom_score_adj: Int32 = -999
    conntrack: Conntrack = Conntrack()
    config_sync_period: timedelta = timedelta(minutes=15)
    port_range: str = ""
    windows_run_as_service: bool = False

    @property
    def cluster_cidrs(self) -> tuple[str, ...]:
        return tuple(self.cluster_cidr.split(",")) if self.cluster_cidr else ()

    @property
    def sync_period(self) -> timedelta:
        return self._periods.sync_period

    @property
    def min_sync_period(self) -> timedelta:
        """Least time between two syncs; 0 where it follows from what a sync costs."""
        return self._periods.min_sync_period

    @property
    def masquerade_all(self) -> bool:
        return self._masquerade.masquerade_all

    @property
    def masquerade_bit(self) -> int:
        return self._masquerade.masquerade_bit

    @property
    def _periods(self) -> IPTables | IPVirtualServer | NFTables:
        block: IPTables | IPVirtualServer | NFTables = getattr(self, self._row.periods)
        return block

    @property
    def _masquerade(self) -> IPTables | NFTables:
        block: IPTables | NFTables = getattr(self, self._row.masquerade)
        return block

    @property
    def _row(self) -> ModeRow:
        return MODES.get(self.mode, MODES[IPTABLES])
