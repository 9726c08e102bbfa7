"""Netfilter chains of other programs, read from nf_tables and from legacy iptables."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from pointsman.backends.netfilter.names import PROXY_TABLE
from pointsman.errors import KernelError, PointsmanError
from pointsman.kernel.command import Commands
from pointsman.kernel.iptables_programs import LEGACY, find_programs, find_variants_in_use
from pointsman.kernel.nfnl import NftablesSocket
from pointsman.kernel.nft_ruleset import NftRuleset
from pointsman.machine.legacy_chains import parse_legacy_chains
from pointsman.machine.nft_chains import ChainReader
from pointsman.machine.packet_filter import FilterChain
from pointsman.model.addresses import Family

Chains = dict[tuple[str, str], FilterChain]

LEGACY_INTERVAL_SECONDS: Final = 10.0
"""Between two runs of the save program of legacy iptables, whose tables have no generation."""
_MIN_PAUSE_FACTOR: Final = 50
"""A pause before the same chains are read again is at least that many times as long as the last reading took."""


class ChainReading(NamedTuple):
    """Chains by table and name, and what could not be read."""

    chains: Chains
    not_read: tuple[str, ...] = ()


class ForeignChains:
    """Reads the chains of the network namespace of the calling thread. Never raises."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def read(self, family: Family) -> ChainReading:
        """Return external base chains of the family and of inet, and the chains they jump to."""
        chains: Chains = {}
        not_read: list[str] = []
        for read in (self._read_nft, self._read_legacy):
            try:
                chains |= read(family)
            except PointsmanError as error:
                not_read.append(f"rules of other programs: {error}")
        return ChainReading(chains, tuple(not_read))

    def _read_nft(self, family: Family) -> Chains:
        with NftablesSocket() as socket:
            reader = ChainReader(socket, family)
            return reader.read_chains(reader.list_base_chains(PROXY_TABLE))

    def _read_legacy(self, family: Family) -> Chains:
        if LEGACY not in find_variants_in_use(family):
            return {}
        found = self._commands.run((find_programs(family, LEGACY).save,))
        if found.status != 0:
            raise KernelError(f"{find_programs(family, LEGACY).save} failed: {found.error_text}")
        return parse_legacy_chains(found.stdout.decode(errors="replace"))


class _Kept(NamedTuple):
    reading: ChainReading
    generation: int | None
    had_legacy: bool
    not_before: float


class CachedChains(ForeignChains):
    """Reads chains again only when they may have changed or could not be read, and rarely where that takes long.

    Commits of the proxy change the generation of the ruleset like those of others, so a reading may be as old as the pause.
    """

    def __init__(self, commands: Commands, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(commands)
        self._clock = clock
        self._kept: dict[Family, _Kept] = {}

    def read(self, family: Family) -> ChainReading:
        began = self._clock()
        kept = self._kept.get(family)
        generation = NftRuleset(family).read_generation()
        has_legacy = LEGACY in find_variants_in_use(family)
        if kept is not None:
            is_current = (
                kept.generation == generation is not None
                and not (has_legacy or kept.had_legacy)
                and not kept.reading.not_read
            )
            if is_current or began < kept.not_before:
                return kept.reading
        reading = super().read(family)
        now = self._clock()
        pause = (now - began) * _MIN_PAUSE_FACTOR
        if has_legacy:
            pause = max(pause, LEGACY_INTERVAL_SECONDS)
        self._kept[family] = _Kept(reading, generation, has_legacy, now + pause)
        return reading
