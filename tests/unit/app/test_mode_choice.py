"""Which mode runs, for which IP families, and what is remembered of those that it cannot serve."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import msgspec
import pytest

from pointsman.app import modes
from pointsman.backends import mode_named
from pointsman.backends.contract import Mode, Setup
from pointsman.config.defaults import with_file_defaults
from pointsman.config.options import RunOptions
from pointsman.config.types import KubeProxyConfiguration
from pointsman.errors import Busy, KernelError, NotSupported
from pointsman.model.addresses import Family

OPTIONS = RunOptions(program="pointsman", config=with_file_defaults(KubeProxyConfiguration(mode="nftables")))


def plans_to_compare(
    answers: dict[Family, Sequence[Exception | str]], pauses: list[float] | None = None
) -> modes.Choice:
    """With a kernel that gives these answers one after the other: an error, what is missing, or an empty text."""
    scripts = {family: iter(script) for family, script in answers.items()}

    def preflight(_setup: Setup, family: Family) -> Sequence[str]:
        answer = next(scripts[family])
        if isinstance(answer, Exception):
            raise answer
        return [answer] if answer else []

    def scripted(name: str) -> Mode:
        return msgspec.structs.replace(mode_named(name), preflight=preflight)

    pause = (pauses if pauses is not None else []).append
    return modes.choose_mode(OPTIONS, find_mode=scripted, families=tuple(answers), sleep=pause)


def test_a_family_that_cannot_be_served_is_remembered_with_the_reason() -> None:
    choice = plans_to_compare({Family.IPV4: [""], Family.IPV6: ["ip6_tables is missing"]})
    assert choice.families == (Family.IPV4,)
    assert choice.refused == {Family.IPV6: "ip6_tables is missing"}


def test_a_family_that_the_kernel_does_not_speak_is_remembered_too() -> None:
    choice = plans_to_compare({Family.IPV4: [""]})
    assert "switched off" in choice.refused[Family.IPV6]


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.ENOMEM, errno.EMFILE])
def test_a_momentary_lack_is_no_refusal(code: int) -> None:
    pauses: list[float] = []
    lack = KernelError("not now", code)
    assert plans_to_compare({Family.IPV4: [""], Family.IPV6: [lack, ""]}, pauses).families == tuple(Family)
    assert plans_to_compare({Family.IPV4: [""], Family.IPV6: [lack, "gone"]}, pauses).families == (
        Family.IPV4,
    )
    assert len(pauses) == 2


@pytest.mark.parametrize("error", [KernelError("not now", errno.ENOMEM), Busy("locked")])
def test_what_is_in_use_or_stays_short_of_memory_is_there_for_the_syncs_to_tell(error: KernelError) -> None:
    assert plans_to_compare({Family.IPV4: [""], Family.IPV6: [error] * 9}).families == tuple(Family)


def test_a_mode_without_any_family_is_refused() -> None:
    with pytest.raises(NotSupported, match="cannot be used here: no nf_tables; no ip6"):
        plans_to_compare({Family.IPV4: ["no nf_tables"], Family.IPV6: [KernelError("no ip6", errno.EPERM)]})
