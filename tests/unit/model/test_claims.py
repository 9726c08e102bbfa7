import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factory import context, endpoint, packed, service_port

from pointsman.model.claims import ClaimIndex, Winner
from pointsman.model.findings import Code, Finding
from pointsman.model.plan import ServicePlan
from pointsman.model.planning import plan_service_port
from pointsman.model.service import Protocol, ServicePort, ServicePortName

OLD = service_port(
    "old", cluster_ip="10.96.0.1", external_ips=("198.51.100.1",), created="2020-01-01T00:00:00Z"
)
NEW = service_port(
    "new", cluster_ip="10.96.0.2", external_ips=("198.51.100.1",), created="2021-01-01T00:00:00Z"
)
CONTESTED = (packed("198.51.100.1"), Protocol.TCP, 80)


def replaced(index: ClaimIndex, old: ServicePort | None, new: ServicePort | None) -> set[ServicePortName]:
    """The other service ports that a replacement affects."""
    index.replace(old, new)
    return index.take_affected() - {port.name for port in (old, new) if port is not None}


def index_of(*ports: ServicePort) -> ClaimIndex:
    index = ClaimIndex()
    for port in ports:
        index.replace(None, port)
    index.take_affected()
    return index


def test_the_older_service_wins_whatever_the_order() -> None:
    for order in ([OLD, NEW], [NEW, OLD]):
        index = ClaimIndex()
        affected = [replaced(index, None, port) for port in order]
        assert affected == [set(), {NEW.name} if order[1] is OLD else set()]
        assert index.find_lost(OLD) == {}
        assert index.find_lost(NEW) == {CONTESTED: Winner(OLD.name)}


class _CountedTime(str):
    """A creation time that counts how often two of them are compared."""

    __slots__ = ()
    comparisons = 0

    def __lt__(self, other: str) -> bool:
        _CountedTime.comparisons += 1
        return super().__lt__(other)


@pytest.mark.parametrize("oldest_first", [True, False])
def test_contenders_of_one_address_cost_a_logarithm_each(oldest_first: bool) -> None:
    """Everyone who may create Services can make thousands of them name the same address."""
    number = 1024
    made = [
        service_port(
            f"s{at:04}",
            cluster_ip=f"10.96.{at // 250}.{at % 250 + 1}",
            external_ips=("198.51.100.1",),
            created=_CountedTime(f"{at if oldest_first else number - at:04}"),
        )
        for at in range(number)
    ]
    _CountedTime.comparisons = 0
    index = ClaimIndex()
    for port in made:
        index.replace(None, port)
    winner = made[0] if oldest_first else made[-1]
    affected = index.take_affected()
    assert affected == (set() if oldest_first else {port.name for port in made})
    assert sum(bool(index.find_lost(port)) for port in made) == number - 1
    for port in made:
        if port is not winner:
            index.replace(port, None)
    assert index.take_affected() == set()
    assert _CountedTime.comparisons <= 4 * number * number.bit_length()


def test_a_new_contender_that_loses_affects_no_other() -> None:
    index = index_of(OLD)
    assert replaced(index, None, NEW) == set()
    assert replaced(index, NEW, None) == set()


def test_the_loser_inherits_when_the_winner_leaves() -> None:
    index = index_of(OLD, NEW)
    assert replaced(index, OLD, None) == {NEW.name}
    assert index.find_lost(NEW) == {}


def test_a_cluster_ip_beats_an_older_external_ip() -> None:
    thief = service_port(
        "thief", cluster_ip="10.96.0.9", external_ips=("10.96.0.2",), created="2000-01-01T00:00:00Z"
    )
    index = index_of(thief, NEW)
    assert index.find_lost(NEW) == {}
    assert index.find_lost(thief) == {
        (packed("10.96.0.2"), Protocol.TCP, 80): Winner(NEW.name, has_address=True)
    }


def test_a_cluster_ip_belongs_to_its_service_at_every_port_until_the_service_goes() -> None:
    claim = (packed("10.96.0.2"), Protocol.UDP, 53)
    older = service_port(
        "older", port=53, protocol=Protocol.UDP, cluster_ip="10.96.0.9", external_ips=("10.96.0.2",)
    )
    index = index_of(older)
    assert index.find_lost(older) == {}
    assert replaced(index, None, NEW) == {older.name}
    assert index.find_lost(older) == {claim: Winner(NEW.name, has_address=True)}
    assert replaced(index, NEW, None) == {older.name}
    assert index.find_lost(older) == {}


def test_a_service_that_names_its_own_cluster_ip_as_external_address_loses_nothing() -> None:
    index = ClaimIndex()
    for name, number in (("http", 80), ("https", 443)):
        port = service_port(port_name=name, port=number, external_ips=("10.96.0.10",))
        index.replace(None, port)
        assert index.find_lost(port) == {}


def test_other_protocols_and_ports_do_not_clash() -> None:
    index = index_of(OLD)
    udp = service_port("udp", protocol=Protocol.UDP, cluster_ip="10.96.0.3", external_ips=("198.51.100.1",))
    other = service_port("other", port=81, cluster_ip="10.96.0.4", external_ips=("198.51.100.1",))
    for port in (udp, other):
        assert replaced(index, None, port) == set()
        assert index.find_lost(port) == {}


def test_one_address_as_external_and_balancer_ip_of_one_service_is_no_clash() -> None:
    both = service_port(external_ips=("198.51.100.1",), load_balancer_ips=("198.51.100.1",))
    index = index_of(both)
    assert index.find_lost(both) == {}


def test_a_loser_keeps_its_other_frontends_and_is_told() -> None:
    made = plan_service_port(NEW, (endpoint(),), context(), {CONTESTED: Winner(OLD.name)})
    assert isinstance(made, ServicePlan)
    assert made.port.external_ips == ()
    assert [finding.code.value for finding in made.findings] == ["ContestedAddress"]
    assert made.findings[0].parameters["holder"] == "default/old:http"


def test_a_lost_cluster_ip_leaves_a_finding_in_place_of_a_plan() -> None:
    lost = {(NEW.cluster_ip, Protocol.TCP, 80): Winner(OLD.name)}
    made = plan_service_port(NEW, (), context(), lost)
    assert isinstance(made, Finding)
    assert made.code is Code.CONTESTED_CLUSTER_IP
    assert made.parameters["holder"] == "default/old:http"


_ports = st.builds(
    service_port,
    st.sampled_from(["a", "b", "c"]),
    cluster_ip=st.sampled_from(["10.96.0.1", "10.96.0.2"]),
    external_ips=st.lists(
        st.sampled_from(["198.51.100.1", "198.51.100.2", "10.96.0.1"]), max_size=2, unique=True
    ),
    port=st.sampled_from([80, 443]),
    node_port=st.sampled_from([0, 30080]),
    created=st.sampled_from(["", "2020", "2021"]),
)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.none() | _ports), max_size=12))
def test_history_does_not_matter(steps: list[tuple[str, ServicePort | None]]) -> None:
    index = ClaimIndex()
    final: dict[str, ServicePort] = {}
    previous: dict[str, object] = {}
    for who, made in steps:
        name = service_port(who).name
        port = made if made is not None and made.name == name else None
        affected = replaced(index, final.pop(who, None), port)
        if port is not None:
            final[who] = port
        now: dict[str, object] = {w: index.find_lost(p) for w, p in final.items()}
        unexpected = {w for w in now if w != who and previous.get(w) != now[w]}
        assert unexpected <= {other.service for other in affected}
        previous = now
    fresh = ClaimIndex()
    for port in final.values():
        fresh.replace(None, port)
    for port in final.values():
        assert index.find_lost(port) == fresh.find_lost(port)
