"""Every line of observable behaviour that the matrix knows for ipvs mode, with real packets, both IP families."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.e2e import behaviour
from tests.e2e.behaviour import Case, disagreement, kept
from tests.e2e.matrix import SERVICES, SETTINGS
from tests.harness.lab import build_lab
from tests.kernel.uml.inside.world import TIMEOUT_SECONDS, IpvsWorld

from pointsman.kernel.iptables import Iptables
from pointsman.lab.probe import Outcome, run_probes
from pointsman.model.addresses import Family

SETTING = SETTINGS[0]
BACK_THROUGH_THE_NODE = {
    **{f"local-elsewhere:{to}-from-client": kept("pod4") for to in ("nodeport", "lb", "external")},
    "endpoint-without-node:lb-from-client": kept("pod1"),
}
"""With a Local policy and remote endpoints only, ipvs mode sends outside clients there with their address kept. The
answer then goes past the node and the client waits in vain, except where, as in this lab, every way leads back through it."""


def _as_seen_here(case: Case) -> Case:
    return msgspec.structs.replace(case, expect=BACK_THROUGH_THE_NODE.get(case.id, case.expect))


ASKED = [
    (_as_seen_here(case), family)
    for case in SETTING.cases
    for family in case.families
    if case.expectation("ipvs") is not None
]
ROUND_ROBIN_TRIES = 2
"""Balancing is exact here, so each backend answers within one round."""


@pytest.fixture(scope="module")
def outcomes(iptables: dict[Family, Iptables]) -> Iterator[dict[tuple[str, int], list[Outcome]]]:
    """Of all cases at once, from one lab and one proxy."""
    with pytest.MonkeyPatch.context() as patch, build_lab() as cluster:
        patch.setattr(behaviour, "TRIES_PER_BACKEND", ROUND_ROBIN_TRIES)
        patch.setattr(behaviour, "TRIES_WITHOUT_ANSWER", 1)
        world = IpvsWorld(cluster, iptables)
        for outcome in world.apply(SERVICES.values()).values():
            assert not outcome.report.rejected
        batches = [case.probes(SERVICES, family, "ipvs") for case, family in ASKED]
        found = iter(run_probes(cluster, [probe for batch in batches for probe in batch], TIMEOUT_SECONDS))
        yield {
            (case.id, family): [next(found) for _ in batch]
            for (case, family), batch in zip(ASKED, batches, strict=True)
        }
        world.close()


@pytest.mark.parametrize(
    ("case", "family"), [pytest.param(case, family, id=f"v{family}-{case.id}") for case, family in ASKED]
)
def test_clients_see(outcomes: dict[tuple[str, int], list[Outcome]], case: Case, family: int) -> None:
    wrong = disagreement(case, family, "ipvs", outcomes[case.id, family])
    assert not wrong, wrong
