from hypothesis import given
from hypothesis import strategies as st
from tests.factory import context, endpoint, packed, service_port

from pointsman.model.claims import ClaimIndex, Winner
from pointsman.model.plan import ServicePlan
from pointsman.model.planning import plan_service_port
from pointsman.model.problem import Problem
from pointsman.model.service import Protocol, ServicePort

OLD = service_port(
    "old", cluster_ip="10.96.0.1", external_ips=("198.51.100.1",), created="2020-01-01T00:00:00Z"
)
NEW = service_port(
    "new", cluster_ip="10.96.0.2", external_ips=("198.51.100.1",), created="2021-01-01T00:00:00Z"
)
CONTESTED = (packed("198.51.100.1"), Protocol.TCP, 80)


def test_the_older_service_wins_whatever_the_order() -> None:
    for order in ([OLD, NEW], [NEW, OLD]):
        index = ClaimIndex()
        touched = [index.update(port.name, port) for port in order]
        assert touched == [set(), {order[0].name}]
        assert index.lost(OLD.name) == {}
        assert index.lost(NEW.name) == {CONTESTED: Winner(OLD.name)}


def test_the_loser_inherits_when_the_winner_leaves() -> None:
    index = ClaimIndex()
    index.update(OLD.name, OLD)
    index.update(NEW.name, NEW)
    assert index.update(OLD.name, None) == {NEW.name}
    assert index.lost(NEW.name) == {}


def test_a_cluster_ip_beats_an_older_external_ip() -> None:
    thief = service_port(
        "thief", cluster_ip="10.96.0.9", external_ips=("10.96.0.2",), created="2000-01-01T00:00:00Z"
    )
    index = ClaimIndex()
    index.update(thief.name, thief)
    index.update(NEW.name, NEW)
    assert index.lost(NEW.name) == {}
    assert index.lost(thief.name) == {
        (packed("10.96.0.2"), Protocol.TCP, 80): Winner(NEW.name, has_address=True)
    }


def test_a_cluster_ip_belongs_to_its_service_at_every_port_until_the_service_goes() -> None:
    claim = (packed("10.96.0.2"), Protocol.UDP, 53)
    older = service_port(
        "older", port=53, protocol=Protocol.UDP, cluster_ip="10.96.0.9", external_ips=("10.96.0.2",)
    )
    index = ClaimIndex()
    index.update(older.name, older)
    assert index.lost(older.name) == {}
    assert index.update(NEW.name, NEW) == {older.name}
    assert index.lost(older.name) == {claim: Winner(NEW.name, has_address=True)}
    assert index.update(NEW.name, None) == {older.name}
    assert index.lost(older.name) == {}


def test_a_service_that_names_its_own_cluster_ip_as_external_address_loses_nothing() -> None:
    index = ClaimIndex()
    for name, number in (("http", 80), ("https", 443)):
        port = service_port(port_name=name, port=number, external_ips=("10.96.0.10",))
        index.update(port.name, port)
        assert index.lost(port.name) == {}


def test_other_protocols_and_ports_do_not_clash() -> None:
    index = ClaimIndex()
    index.update(OLD.name, OLD)
    udp = service_port("udp", protocol=Protocol.UDP, cluster_ip="10.96.0.3", external_ips=("198.51.100.1",))
    other = service_port("other", port=81, cluster_ip="10.96.0.4", external_ips=("198.51.100.1",))
    for port in (udp, other):
        assert index.update(port.name, port) == set()
        assert index.lost(port.name) == {}


def test_one_address_as_external_and_balancer_ip_of_one_service_is_no_clash() -> None:
    both = service_port(external_ips=("198.51.100.1",), load_balancer_ips=("198.51.100.1",))
    index = ClaimIndex()
    index.update(both.name, both)
    assert index.lost(both.name) == {}


def test_a_loser_keeps_its_other_frontends_and_is_told() -> None:
    made = plan_service_port(NEW, (endpoint(),), context(), {CONTESTED: Winner(OLD.name)})
    assert isinstance(made, ServicePlan)
    assert made.port.external_ips == ()
    assert [problem.reason for problem in made.problems] == ["ContestedAddress"]
    assert "default/old:http" in made.problems[0].message


def test_a_lost_cluster_ip_leaves_a_problem_in_place_of_a_plan() -> None:
    lost = {(NEW.cluster_ip, Protocol.TCP, 80): Winner(OLD.name)}
    made = plan_service_port(NEW, (), context(), lost)
    assert isinstance(made, Problem)
    assert made.reason == "ContestedClusterIP"
    assert "default/old:http" in made.message


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
        touched = index.update(name, port)
        final.pop(who, None)
        if port is not None:
            final[who] = port
        now: dict[str, object] = {w: index.lost(p.name) for w, p in final.items()}
        unexpected = {w for w in now if w != who and previous.get(w) != now[w]}
        assert unexpected <= {other.service for other in touched}
        previous = now
    fresh = ClaimIndex()
    for port in final.values():
        fresh.update(port.name, port)
    for port in final.values():
        assert index.lost(port.name) == fresh.lost(port.name)
