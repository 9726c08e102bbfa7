"""Effects of schedulers, with real packets: shares, clients moved, slow start, a new replica that catches up.

No figure is a time, so a busy machine does no harm. bench.charts draws the results.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.measured import print_table
from tests.factory import endpoint, service_port
from tests.kernel.test_nft_schedulers import VIP, SchedulerNode, clients, server, servers, udp

from pointsman.model.addresses import Family
from pointsman.model.balancing import BalancingPlan, BalancingRequest, Scheduler
from pointsman.model.endpoint import Endpoint, Identity
from pointsman.model.shares import compute_shares, compute_warm_up_share, compute_weights
from pointsman.model.slots import assign_slots, compute_table_size
from pointsman.model.tracker import PortState
from pointsman.node.share_adjuster import count_open_connections

FAMILY = Family.IPV4
PACKETS = 4000
SLOW_START = 30
ROUNDS, CONNECTIONS_PER_ROUND = 30, 20


def shares(world: SchedulerNode) -> list[dict[str, Any]]:
    """Packets by weight."""
    weights = {1: 6, 2: 3, 3: 2, 4: 1}
    world.load(udp(FAMILY), *servers(FAMILY, weights))
    counts = Counter(world.send(clients(FAMILY, PACKETS)).values())
    return [
        {
            "weight": weight,
            "wanted_percent": 100 * weight / sum(weights.values()),
            "packets": counts[number],
            "measured_percent": 100 * counts[number] / PACKETS,
        }
        for number, weight in weights.items()
    ]


def moved_clients(world: SchedulerNode) -> list[dict[str, Any]]:
    """One endpoint of several goes: packets before and after, and how many clients meet another server."""
    rows = []
    for count in (2, 3, 5, 10):
        port = udp(FAMILY, Scheduler.SOURCE_HASH)
        some = servers(FAMILY, dict.fromkeys(range(1, count + 1), 1))
        world.load(port, *some)
        before = [*world.send(clients(FAMILY, PACKETS)).values()]
        world.change(port, *some[1:])
        after = [*world.send(clients(FAMILY, PACKETS)).values()]
        moved = sum(old != new for old, new in zip(before, after, strict=True))
        rows.append(
            {
                "endpoints": count,
                "least_possible_percent": 100 * before.count(1) / PACKETS,
                "moved_percent": 100 * moved / PACKETS,
                "by_plain_remainder_percent": 100 * (1 - 1 / count),
            }
        )
    return rows


def _walk(name: bytes, size: int) -> Iterator[int]:
    digest = hashlib.blake2b(name, digest_size=16).digest()
    start, step = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big") % (size - 1) + 1
    return ((start + turn * step) % size for turn in range(size))


def maglev(names: Sequence[bytes], size: int) -> list[bytes]:
    """The table that Google's Maglev would make; `size` is a prime."""
    table: list[bytes] = [b""] * size
    walks = [(name, _walk(name, size)) for name in names]
    for name, walk in itertools.islice(itertools.cycle(walks), size):
        table[next(slot for slot in walk if not table[slot])] = name
    return table


def moved_by_maglev(count: int, size: int) -> float:
    """Clients that move when one endpoint of several goes, in parts of a fair share, on average."""
    names = [bytes((number,)) for number in range(count)]
    table = maglev(names, size)
    changes = [maglev([name for name in names if name != gone], size) for gone in names]
    return sum(a != b for new in changes for a, b in zip(table, new, strict=True)) / size


def hash_tables() -> list[dict[str, Any]]:
    """How even tables of several sizes are, and what the loss of one endpoint moves, Maglev's tables for comparison."""
    rows = []
    for slots, prime in ((64, 61), (128, 127), (256, 251), (512, 509), (2048, 2039)):
        for count in (3, 10, 30):
            if compute_table_size(slots, count) != slots:
                continue
            pods = tuple(endpoint(f"10.244.1.{number}") for number in range(1, count + 1))
            balance = BalancingPlan(Scheduler.SOURCE_HASH, seed=1, hash_slots=slots)
            table = assign_slots(pods, balance)
            changes = [assign_slots(tuple(p for p in pods if p != gone), balance) for gone in pods]
            moved = [sum(a != b for a, b in zip(table, new, strict=True)) / slots for new in changes]
            held = Counter(table).values()
            rows.append(
                {
                    "slots": slots,
                    "endpoints": count,
                    "largest_share_of_fair": max(held) * count / slots,
                    "smallest_share_of_fair": min(held) * count / slots,
                    "moved_of_fair_on_average": sum(moved) / len(moved) * count,
                    "moved_of_fair_at_most": max(moved) * count,
                    "moved_by_maglev_on_average": moved_by_maglev(count, prime),
                }
            )
    return rows


def slow_start(world: SchedulerNode) -> list[dict[str, Any]]:
    """Return the share of a new endpoint beside a warm one, second by second of its slow start."""
    rows = []
    for second in range(0, SLOW_START + 4, 2):
        share = compute_warm_up_share(second, SLOW_START)
        world.load(udp(FAMILY), endpoint(server(FAMILY, 1)), endpoint(server(FAMILY, 2), share=share))
        counts = Counter(world.send(clients(FAMILY, PACKETS)).values())
        rows.append(
            {
                "second": second,
                "wanted_percent": 100 * share / (100 + share),
                "measured_percent": 100 * counts[2] / PACKETS,
            }
        )
    return rows


def catching_up(world: SchedulerNode, *, adjusting: bool) -> list[int]:
    """Two endpoints hold 100 connections each when a third appears; its connections after every reading."""
    port = service_port(
        cluster_ip=VIP[FAMILY], balancing=BalancingRequest(Scheduler.LEAST_CONNECTIONS), port_name="tcp"
    )
    three = [endpoint(server(FAMILY, number)) for number in (1, 2, 3)]
    history: list[int] = []
    with contextlib.ExitStack() as held, world.namespace.entered():
        for number in (1, 2, 3):
            held.enter_context(socket.create_server((server(FAMILY, number), 8080), backlog=2000))

        def connect(count: int) -> None:
            for _ in range(count):
                held.enter_context(socket.create_connection((VIP[FAMILY], 80), timeout=5))

        def counted(endpoints: Sequence[Endpoint]) -> Mapping[Identity, int]:
            return count_open_connections(FAMILY, {port.name: PortState(port, tuple(endpoints))})[port.name]

        world.load(port, *three[:2])
        connect(200)
        now: dict[Identity, float] = {}
        for _ in range(ROUNDS):
            counts = counted(three)
            history.append(counts.get(three[2].identity, 0))
            if adjusting:
                now = compute_shares(now, counts, compute_weights(three, port.service.balancing))
            world.change(
                port,
                *(e.with_share(round(now.get(e.identity, 100.0))) for e in three),
            )
            connect(CONNECTIONS_PER_ROUND)
    return history


def fresh_replica() -> list[dict[str, Any]]:
    found = {}
    for adjusting in (False, True):
        with contextlib.closing(SchedulerNode(FAMILY)) as world:
            found[adjusting] = catching_up(world, adjusting=adjusting)
    return [
        {
            "reading": number,
            "average": (200 + CONNECTIONS_PER_ROUND * number) // 3,
            "with_random": by_chance,
            "with_least_connections": adjusted,
        }
        for number, (by_chance, adjusted) in enumerate(zip(found[False], found[True], strict=True))
    ]


def run(options: argparse.Namespace) -> Any:
    del options
    with contextlib.closing(SchedulerNode(FAMILY)) as node:
        results = {
            "shares_by_weight": shares(node),
            "clients_moved_by_the_loss_of_one_endpoint": moved_clients(node),
            "hash_tables": hash_tables(),
            "slow_start_of_30_seconds": slow_start(node),
            "connections_of_a_fresh_replica": fresh_replica(),
        }
    for name, rows in results.items():
        print(f"\n{name}")
        print_table(rows)
    return results
