"""Proxy modes as the process sees them: which one to use, how to build its backends, how to remove its traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pointsman.backends.contract import Backend
from pointsman.config.command_line import RunOptions
from pointsman.config.types import IPTABLES, IPVS, NFTABLES, KubeProxyConfiguration
from pointsman.errors import KernelError, NotSupported
from pointsman.kernel.command import SystemCommands
from pointsman.kernel.iptables import Iptables
from pointsman.kernel.iptables_programs import choose_variant, variants_in_use
from pointsman.kernel.sysctl import Sysctls
from pointsman.model.addresses import Cidr, Family, cidr_from_text
from pointsman.node.own_addresses import kernel_families
from pointsman.obs.log import get_log

IPVS_SCHEDULER = "rr"
"""kube-proxy's default scheduler."""

_log = get_log(__name__)


def choose(options: RunOptions) -> tuple[str, str]:
    """The mode to run and the reason, in words."""
    if options.config.mode:
        if options.mode_explicit:
            return options.config.mode, "configured"
        return options.config.mode, f"{options.program}'s default"
    from pointsman.backends.nftables.preflight import preflight

    missing = preflight(Family.IPV4)
    if not missing:
        return NFTABLES, "no mode configured and the kernel can do nftables"
    return IPTABLES, f"no mode configured and nftables cannot be used: {'; '.join(missing)}"


def backends(mode: str, config: KubeProxyConfiguration, options: RunOptions) -> dict[Family, Backend]:
    """A backend per family this machine can serve; raises NotSupported when there is none."""
    sysctls = sysctl_journal(options.state_dir)
    initialise(mode, config, sysctls)
    made: dict[Family, Backend] = {}
    problems: list[str] = []
    for family in kernel_families():
        try:
            made[family] = _backend(mode, family, config, options, sysctls)
        except KernelError as error:
            problems.append(f"{family.value}: {error}")
            _log.warning("This family cannot be served", ipFamily=family.value, err=error)
    if not made:
        raise NotSupported(f"mode {mode} cannot be used here: {'; '.join(problems)}")
    return made


def reading_backend(
    mode: str, family: Family, config: KubeProxyConfiguration, options: RunOptions
) -> Backend:
    """A backend to compare with, without preparing the host for the mode."""
    return _backend(mode, family, config, options, sysctl_journal(options.state_dir))


def _backend(
    mode: str, family: Family, config: KubeProxyConfiguration, options: RunOptions, sysctls: Sysctls
) -> Backend:
    if mode == NFTABLES:
        from pointsman.backends.nftables.apply import NftablesBackend

        return NftablesBackend(
            family,
            service_metrics=options.service_metrics,
            localhost_node_ports=dict(config.feature_gates).get("KubeProxyNFTablesLocalhostNodePorts", False),
        )
    if mode == IPVS:
        from pointsman.backends.ipvs.apply import IpvsBackend, IpvsSettings

        runner = iptables_runner(family)
        settings = IpvsSettings(
            scheduler=config.ipvs.scheduler or IPVS_SCHEDULER,
            exclude_cidrs=_cidrs(config.ipvs.exclude_cidrs),
        )
        return IpvsBackend(family, runner, settings, random_fully=runner.features.random_fully)
    from pointsman.backends.iptables.apply import IptablesBackend

    runner = iptables_runner(family)
    if not runner.present():
        raise NotSupported(
            f"{runner.programs.save} is not installed or the kernel lacks its tables; "
            "install the package iptables, or use mode nftables"
        )
    return IptablesBackend(
        family,
        runner=runner,
        sysctls=sysctls,
        localhost_node_ports=config.iptables.localhost_node_ports,
    )


def iptables_runner(family: Family) -> Iptables:
    commands = SystemCommands()
    return Iptables(family, commands, variant=choose_variant(commands, family))


def sysctl_journal(state_dir: Path) -> Sysctls:
    return Sysctls(journal=state_dir / "sysctls.json")


def initialise(mode: str, config: KubeProxyConfiguration, sysctls: Sysctls) -> None:
    """The privileged part of a mode's start."""
    if mode == IPVS:
        _prepare_ipvs(config, sysctls)


def _prepare_ipvs(config: KubeProxyConfiguration, sysctls: Sysctls) -> None:
    from pointsman.backends.ipvs.preflight import prepare

    for degraded in prepare(
        sysctls,
        scheduler=config.ipvs.scheduler or IPVS_SCHEDULER,
        families=kernel_families(),
        strict_arp=config.ipvs.strict_arp,
        tcp_timeout=int(config.ipvs.tcp_timeout.total_seconds()),
        tcp_fin_timeout=int(config.ipvs.tcp_fin_timeout.total_seconds()),
        udp_timeout=int(config.ipvs.udp_timeout.total_seconds()),
    ):
        _log.warning("Degraded", check=degraded.check, reason=degraded.message)


def _cidrs(texts: Sequence[str]) -> tuple[Cidr, ...]:
    return tuple(cidr for text in texts if (cidr := cidr_from_text(text)) is not None)


def remove_leftovers(mode: str, state_dir: Path) -> list[str]:
    """Remove what other modes left behind; kernel settings stay, the running mode may need them.

    iptables and ipvs mode share chains: those stay, and what only the other one has goes. kube-proxy leaves it, and
    with it rules that reject traffic for services which have endpoints by now.
    """
    if mode == NFTABLES:
        return _clean_iptables_based(state_dir, undo_sysctls=False)
    if mode == IPVS:
        return [*_clean_nftables(), *_clean_for_ipvs(state_dir)]
    return [*_clean_nftables(), *_clean_for_iptables()]


def remove_everything(state_dir: Path) -> list[str]:
    """Remove the traces of every mode, ours or kube-proxy's, and put kernel settings back."""
    return [*_clean_nftables(), *_clean_iptables_based(state_dir, undo_sysctls=True)]


def _clean_nftables() -> list[str]:
    from pointsman.backends.nftables.apply import cleanup

    try:
        return cleanup()
    except NotSupported:
        return []


def _clean_iptables_based(state_dir: Path, *, undo_sysctls: bool) -> list[str]:
    from pointsman.backends.iptables import cleanup as iptables
    from pointsman.backends.ipvs import cleanup as ipvs

    usable = _usable_runners()
    done = ipvs.cleanup(usable) if usable else []
    return [*done, *iptables.cleanup(usable, sysctl_journal(state_dir), undo_sysctls=undo_sysctls)]


def _clean_for_ipvs(state_dir: Path) -> list[str]:
    from pointsman.backends.iptables import cleanup as iptables
    from pointsman.backends.ipvs.rules import CHAINS

    sysctls = sysctl_journal(state_dir)
    return iptables.cleanup(_usable_runners(), sysctls, undo_sysctls=False, keep=CHAINS)


def _clean_for_iptables() -> list[str]:
    from pointsman.backends.ipvs import cleanup as ipvs

    return ipvs.cleanup(_usable_runners(), keep_shared=True)


def _usable_runners() -> list[Iptables]:
    """Every family and variant that holds rules here."""
    commands = SystemCommands()
    runners = [
        Iptables(family, commands, variant=variant)
        for family in kernel_families()
        for variant in variants_in_use(family)
    ]
    return [runner for runner in runners if runner.present()]
