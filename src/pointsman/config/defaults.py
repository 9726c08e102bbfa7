"""Defaults of kube-proxy: first for what a file leaves out or zero, then for what depends on the chosen mode."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

import msgspec

from pointsman.config.mode_table import MODES
from pointsman.config.types import (
    ClientConnection,
    IPTables,
    IPVirtualServer,
    KubeProxyConfiguration,
    Logging,
    NFTables,
)
from pointsman.model.addresses import address_from_text

HEALTHZ_PORT = 10256
METRICS_PORT = 10249
LOCAL_BY_CLUSTER_CIDR = "ClusterCIDR"

_Block = TypeVar("_Block", bound=msgspec.Struct)


def with_file_defaults(config: KubeProxyConfiguration) -> KubeProxyConfiguration:
    """Return the configuration with the defaults of a file: upstream takes zero and empty for "not given" in these fields."""
    bind_address = config.bind_address or KubeProxyConfiguration().bind_address
    healthz, metrics = compute_bind_addresses(bind_address)
    return msgspec.structs.replace(
        _replace_zeros(config, KubeProxyConfiguration(), "config_sync_period"),
        bind_address=bind_address,
        healthz_bind_address=with_port(config.healthz_bind_address, HEALTHZ_PORT) or healthz,
        metrics_bind_address=with_port(config.metrics_bind_address, METRICS_PORT) or metrics,
        client_connection=_replace_zeros(
            config.client_connection, ClientConnection(), "content_type", "qps", "burst"
        ),
        logging=_replace_zeros(config.logging, Logging(), "format", "flush_frequency"),
        iptables=_replace_zeros(config.iptables, IPTables(), "sync_period"),
        ipvs=_replace_zeros(config.ipvs, IPVirtualServer(), "sync_period"),
        nftables=_replace_zeros(config.nftables, NFTables(), "sync_period"),
    )


def with_mode(config: KubeProxyConfiguration, mode: str) -> KubeProxyConfiguration:
    """Return the configuration for `mode`, with the defaults that only the mode decides.

    `mode` may be empty: then only what does not depend on it is filled in, and this is called again when the mode is chosen.
    """
    row = MODES.get(mode)
    return msgspec.structs.replace(
        config,
        mode=mode,
        node_port_addresses=config.node_port_addresses or (row.node_ports if row else ()),
        detect_local_mode=config.detect_local_mode or LOCAL_BY_CLUSTER_CIDR,
    )


def with_port(address: str, port: int) -> str:
    """Return `address` with the port appended when it is a bare IP; anything else unchanged, for validation to reject."""
    if address_from_text(address) is None:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def compute_bind_addresses(bind_address: str) -> tuple[str, str]:
    """Return the default addresses of health and metrics; their family follows the bind address."""
    packed = address_from_text(bind_address)
    if packed is not None and len(packed) == 4:
        return f"0.0.0.0:{HEALTHZ_PORT}", f"127.0.0.1:{METRICS_PORT}"
    return f"[::]:{HEALTHZ_PORT}", f"[::1]:{METRICS_PORT}"


def _replace_zeros(block: _Block, default: _Block, *names: str) -> _Block:
    absent: tuple[object, ...] = ("", 0, timedelta(0))
    return msgspec.structs.replace(
        block, **{name: getattr(default, name) for name in names if getattr(block, name) in absent}
    )
