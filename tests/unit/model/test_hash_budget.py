"""Large hash tables of all Services of a node share one budget."""

from tests import factory
from tests.factory import service_port
from tests.harness.assembled import assembled

from pointsman.model.balancing import DEFAULT_BALANCING, BalancingRequest, Scheduler
from pointsman.model.service import ServicePort, ServicePortName
from pointsman.model.slots import MAX_EXTRA_ELEMENTS, HashBudget, assign_slots

LARGE = BalancingRequest(Scheduler.SOURCE_HASH, "source-hash", hash_slots=65536)


def hashed(number: int, request: BalancingRequest = LARGE) -> ServicePort:
    cluster_ip = f"10.96.{number // 250}.{number % 250 + 1}"
    return service_port(f"s{number:03}", cluster_ip=cluster_ip, balancing=request, created=f"{number:03}")


def filled(ports: list[ServicePort]) -> HashBudget:
    budget = HashBudget()
    for port in ports:
        budget.replace(port.name, port, 10, DEFAULT_BALANCING)
    budget.take_affected()
    return budget


def names(ports: list[ServicePort]) -> set[ServicePortName]:
    return {port.name for port in ports}


def test_older_services_take_precedence_in_any_order() -> None:
    ports = [hashed(number) for number in range(100)]
    granted = MAX_EXTRA_ELEMENTS // (65536 - DEFAULT_BALANCING.hash_slots)
    for order in (ports, ports[::-1]):
        assert filled(order).exceeding == names(ports[granted:])


def test_a_smaller_table_gives_its_part_to_the_next() -> None:
    ports = [hashed(number) for number in range(9)]
    budget = filled(ports)
    assert budget.exceeding == {ports[8].name}
    first = ports[0]
    budget.replace(first.name, hashed(0, BalancingRequest(Scheduler.SOURCE_HASH)), 10, DEFAULT_BALANCING)
    assert budget.take_affected() == {ports[8].name}
    assert budget.exceeding == frozenset()
    assert budget.take_affected() == frozenset()


def test_tables_of_the_default_size_and_other_schedulers_cost_nothing() -> None:
    requests = [
        BalancingRequest(),
        BalancingRequest(Scheduler.SOURCE_HASH),
        BalancingRequest(Scheduler.WEIGHTED, hash_slots=65536),
    ]
    budget = HashBudget(limit=0)
    for number, request in enumerate(requests):
        port = hashed(number, request)
        budget.replace(port.name, port, 10, DEFAULT_BALANCING)
    assert budget.take_affected() == frozenset()
    large = hashed(9)
    budget.replace(large.name, large, 10, DEFAULT_BALANCING)
    assert budget.take_affected() == {large.name}
    budget.replace(large.name, None, 0, DEFAULT_BALANCING)
    assert budget.take_affected() == {large.name}


async def test_both_families_of_a_node_share_the_budget() -> None:
    annotations = {"pointsman.dev/scheduler": "source-hash", "pointsman.dev/hash-slots": "65536"}
    async with assembled() as assembly:
        addresses = [{"type": "InternalIP", "address": one} for one in ("192.168.1.10", "fd00::10")]
        assembly.source.put(factory.node("n1", addresses=addresses))
        for number in range(1, 10):
            name, cluster_ips = f"s{number}", [f"10.96.0.{number}", f"fd00:96::{number}"]
            metadata = {"annotations": annotations}
            assembly.source.put(
                factory.service(name, clusterIP=cluster_ips[0], clusterIPs=cluster_ips, metadata=metadata),
                factory.endpoint_slice("10.244.1.1", "10.244.1.2", name=f"{name}-4", service_name=name),
                factory.endpoint_slice(
                    "fd00:244::1", "fd00:244::2", name=f"{name}-6", service_name=name, family="IPv6"
                ),
            )
        assembly.source.listed()
        await assembly.settled()
        plans = [plan for backend in assembly.backends.values() for plan in backend.programmed.values()]
        assert len(plans) == 18
        slots = sum(len(assign_slots(plan.endpoints.cluster, plan.balancing)) for plan in plans)
        assert MAX_EXTRA_ELEMENTS < 9 * 65536
        assert 65536 < slots <= MAX_EXTRA_ELEMENTS + len(plans) * DEFAULT_BALANCING.hash_slots
