"""What a Case is, how it becomes probes, and how outcomes are judged. No kernel, no process here.

A case says: this host talks to this frontend of that Service; these hosts answer (all of them, and nobody else) and
see that source address, or nobody does, in this way. Where modes differ the case holds one expectation per mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pointsman.lab.hosts import BRIDGE, HOSTS
from pointsman.lab.objects import LabService
from pointsman.lab.probe import Kind, Outcome, Probe

TRIES_PER_BACKEND = 14
"""With 3 backends (42 tries) one is missed in less than 1 of 8 million cases."""
TRIES_WITHOUT_ANSWER = 2


class Expect(msgspec.Struct, frozen=True):
    """How every probe of a case must end."""

    kind: Kind
    by: frozenset[str] = frozenset()
    masqueraded: bool = False

    def __str__(self) -> str:
        if self.kind is not Kind.ANSWERED:
            return str(self.kind.value)
        source = "the node's address towards them" if self.masqueraded else "the client's own address"
        return f"answered by exactly {', '.join(sorted(self.by))}, who see {source}"


def kept(*by: str) -> Expect:
    return Expect(Kind.ANSWERED, frozenset(by))


def masqueraded(*by: str) -> Expect:
    return Expect(Kind.ANSWERED, frozenset(by), masqueraded=True)


REFUSED = Expect(Kind.REFUSED)
TIMED_OUT = Expect(Kind.TIMED_OUT)
NOT_PERMITTED = Expect(Kind.NOT_PERMITTED)

Expectation = Expect | Mapping[str, Expect]


class Case(msgspec.Struct, frozen=True):
    """One line of observable behaviour."""

    id: str
    service: str
    host: str
    to: str
    """`cluster`, `lb`, `external`, `nodeport`, or `nodeport@bridge` and `nodeport@loopback` for those addresses of
    n1; `unallocated` is an address in the service range that no Service has."""
    expect: Expectation
    protocol: str = "TCP"
    port: int = 80
    families: tuple[int, ...] = (4, 6)

    def expectation(self, mode: str) -> Expect | None:
        """None when the case says nothing about that mode."""
        return self.expect if isinstance(self.expect, Expect) else self.expect.get(mode)

    def expects_silence(self, mode: str) -> bool:
        expect = self.expectation(mode)
        return expect is not None and expect.kind in (Kind.TIMED_OUT, Kind.NOT_PERMITTED)

    def probes(self, services: Mapping[str, LabService], family: int, mode: str) -> list[Probe]:
        expect = self.expectation(mode)
        assert expect is not None
        address, port = self._target(services, family)
        tries = TRIES_PER_BACKEND * len(expect.by) or TRIES_WITHOUT_ANSWER
        return [Probe(self.host, address, port, self.protocol)] * tries

    def _target(self, services: Mapping[str, LabService], family: int) -> tuple[str, int]:
        if self.to == "unallocated":
            return ("10.96.200.200", "fd00:10:96::c8c8")[family == 6], self.port
        service = services[self.service]
        if not self.to.startswith("nodeport"):
            return service.address(self.to, family), self.port
        where = {
            "nodeport": HOSTS["n1"].address(family),
            "nodeport@bridge": BRIDGE["n1"][family],
            "nodeport@loopback": "127.0.0.1" if family == 4 else "::1",
        }[self.to]
        return where, service.node_port_of(self.port)


def source_seen(host: str, by: str, family: int, expect: Expect) -> str:
    """The address `by` must see for a connection of `host`."""
    if by == "n1":
        # The packet never leaves the node, so there is nothing to masquerade.
        return HOSTS[host].address(family)
    hairpin = by == host
    if expect.masqueraded or hairpin:
        return BRIDGE["n1"][family] if HOSTS[by].network == "n1" else HOSTS["n1"].address(family)
    return HOSTS[host].address(family)


def disagreement(case: Case, family: int, mode: str, outcomes: Sequence[Outcome]) -> str:
    """Empty when the outcomes are what the case expects; otherwise what was seen instead."""
    expect = case.expectation(mode)
    assert expect is not None
    wrong = [
        outcome
        for outcome in outcomes
        if outcome.kind is not expect.kind
        or (
            outcome.kind is Kind.ANSWERED
            and (
                outcome.by not in expect.by
                or outcome.seen != source_seen(case.host, outcome.by, family, expect)
            )
        )
    ]
    missing = expect.by - {outcome.by for outcome in outcomes}
    if not wrong and not missing:
        return ""
    return (
        f"{case.host} -> {case.service} at {case.to}, {case.protocol}, IPv{family}: expected {expect}; "
        f"saw {tally(outcomes)}"
    )


def tally(outcomes: Iterable[Outcome]) -> str:
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[str(outcome)] = counts.get(str(outcome), 0) + 1
    return "; ".join(f"{count} x {what}" for what, count in sorted(counts.items()))
