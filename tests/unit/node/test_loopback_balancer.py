"""Which endpoint a connection to a node port on loopback is carried to."""

from __future__ import annotations

from pointsman.node.loopback_node_ports import Balancer, LoopbackPort

TARGETS = tuple((f"10.244.1.{number}", 8080) for number in range(1, 4))
STICKY = LoopbackPort(30080, TARGETS, affinity_seconds=10)


def chosen(balancer: Balancer, *times: float) -> set[tuple[str, int]]:
    return {balancer.choose(now) for now in times}


def test_without_affinity_all_endpoints_are_used() -> None:
    assert chosen(Balancer(LoopbackPort(30080, TARGETS)), *[0.0] * 100) == set(TARGETS)


def test_use_prolongs_affinity() -> None:
    assert len(chosen(Balancer(STICKY), *(10.0 * step for step in range(100)))) == 1


def test_affinity_ends_after_disuse_and_with_its_setting() -> None:
    balancer = Balancer(STICKY)
    assert chosen(balancer, *(10.1 * step for step in range(100))) == set(TARGETS)
    other = LoopbackPort(30080, TARGETS, affinity_seconds=20)
    seen = set()
    for step in range(100):
        balancer.follow(other if step % 2 else STICKY)
        seen |= chosen(balancer, 2000.0)
    assert seen == set(TARGETS)
