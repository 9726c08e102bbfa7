"""Large hash tables of all Services of a node share one budget."""

from tests.factory import endpoint, service_port

from pointsman.model.balancing import DEFAULT_BALANCING, BalancingRequest, Scheduler
from pointsman.model.hash_budget import MAX_EXTRA_ELEMENTS, HashBudget
from pointsman.model.service import ServicePort, ServicePortName
from pointsman.model.tracker import PortState

LARGE = BalancingRequest(Scheduler.SOURCE_HASH, "source-hash", hash_slots=65536)


def hashed(number: int, request: BalancingRequest = LARGE) -> ServicePort:
    cluster_ip = f"10.96.{number // 250}.{number % 250 + 1}"
    return service_port(f"s{number:03}", cluster_ip=cluster_ip, balancing=request, created=f"{number:03}")


def state(port: ServicePort) -> PortState:
    return PortState(port, tuple(endpoint(f"10.244.1.{number}") for number in range(10)))


def filled(ports: list[ServicePort]) -> HashBudget:
    budget = HashBudget()
    for port in ports:
        budget.replace(port.name, state(port), DEFAULT_BALANCING)
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
    budget.replace(first.name, state(hashed(0, BalancingRequest(Scheduler.SOURCE_HASH))), DEFAULT_BALANCING)
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
        budget.replace(port.name, state(port), DEFAULT_BALANCING)
    assert budget.take_affected() == frozenset()
    large = hashed(9)
    budget.replace(large.name, state(large), DEFAULT_BALANCING)
    assert budget.take_affected() == {large.name}
    budget.replace(large.name, None, DEFAULT_BALANCING)
    assert budget.take_affected() == {large.name}
