"""What a patrol makes of the numbers of elements that it counts itself."""

from __future__ import annotations

from collections.abc import Sequence

from tests.factory import context, endpoint, plan, service_port

from pointsman.backends.contract import PRESENT, Difference
from pointsman.backends.nftables import schema
from pointsman.backends.nftables.compile import fragment_from_plan
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.patrol import ElementPatrol, expected_elements
from pointsman.backends.nftables.reader import KernelElement, Reader
from pointsman.backends.nftables.schema import SetSpec

STRANGER = KernelElement(bytes((10, 9, 9, 9)))


class HeldElements(Reader):
    """A kernel that holds what it should, perhaps some more, and counts as it likes."""

    def __init__(self, contents: Contents) -> None:
        self.held: dict[str, dict[bytes, KernelElement]] = {name: {} for name in contents.sets}
        for spec, element in expected_elements(contents):
            self.held[spec.name][element.key] = element
        self.miscounted: dict[str, int] = {}
        self.counted: list[str] = []
        self.listed: list[str] = []

    def count(self, spec: SetSpec) -> int:
        self.counted.append(spec.name)
        return len(self.held[spec.name]) + self.miscounted.get(spec.name, 0)

    def elements(self, spec: SetSpec) -> dict[bytes, KernelElement]:
        self.listed.append(spec.name)
        return self.held[spec.name]

    def look_up(self, wanted: Sequence[tuple[SetSpec, bytes]]) -> list[KernelElement | None]:
        return [self.held[spec.name].get(key) for spec, key in wanted]


def some_contents(services: int) -> Contents:
    contents = Contents(context())
    plans = [
        plan(
            service_port(name=f"svc-{number}", cluster_ip=f"10.96.{number // 250}.{number % 250 + 1}"),
            endpoint("10.244.0.1"),
            endpoint("10.244.0.2"),
        )
        for number in range(services)
    ]
    contents.load({made.name: fragment_from_plan(made, context()) for made in plans})
    return contents


def looks(patrol: ElementPatrol, contents: Contents, reader: Reader, count: int = 20) -> list[Difference]:
    return [found for _ in range(count) if (found := patrol.look(contents, reader)) is not None]


def test_nothing_is_counted_where_the_kernel_counts() -> None:
    contents = some_contents(10)
    reader, patrol = HeldElements(contents), ElementPatrol()
    patrol.foreign_commit(count=False)
    assert looks(patrol, contents, reader) == []
    assert reader.counted == []


def test_each_set_is_counted_once_in_a_round_and_a_large_one_has_a_look_of_its_own() -> None:
    contents = some_contents(400)
    reader, patrol = HeldElements(contents), ElementPatrol()
    patrol.foreign_commit(count=True)
    most_at_once = 0
    for _ in range(40):
        before = len(reader.counted)
        assert patrol.look(contents, reader) is None
        told = [contents.counts[name] for name in reader.counted[before:]]
        most_at_once = max(most_at_once, sum(told) - max(told, default=0))
    assert sorted(reader.counted) == sorted(contents.sets)
    assert most_at_once < 400
    assert reader.listed == []


def test_a_set_of_another_size_is_listed_and_the_stranger_in_it_named() -> None:
    contents = some_contents(10)
    reader, patrol = HeldElements(contents), ElementPatrol()
    reader.held[schema.CLUSTER_IPS][STRANGER.key] = STRANGER
    patrol.foreign_commit(count=True)
    assert looks(patrol, contents, reader)[0] == Difference("set cluster-ips 10.9.9.9", "", PRESENT)


def test_a_hash_table_that_grows_while_it_is_counted_is_no_damage() -> None:
    contents = some_contents(10)
    reader, patrol = HeldElements(contents), ElementPatrol()
    reader.miscounted = {schema.ENDPOINTS: 3, schema.CLUSTER_IPS: -1}
    patrol.foreign_commit(count=True)
    assert looks(patrol, contents, reader) == []
    assert sorted(reader.listed) == [schema.CLUSTER_IPS, schema.ENDPOINTS]


def test_foreign_commits_at_every_look_keep_no_set_from_being_counted() -> None:
    contents = some_contents(400)
    reader, patrol = HeldElements(contents), ElementPatrol()
    for _ in range(20):
        patrol.foreign_commit(count=True)
        assert patrol.look(contents, reader) is None
    assert set(reader.counted) == set(contents.sets)
