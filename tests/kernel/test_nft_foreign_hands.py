"""The kernel may hold anything under our name: what others left, changed or own is seen, reported and put right."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec
import pytest
from tests.factory import context, endpoint, endpoint_slice, packed, plan, service, service_port
from tests.kernel.nft_kernel import everything, find_drift, listing, needs_nft, part, table, table_handle
from tests.unit.explain.explaining import asked, codes, view_of

from pointsman.backends.contract import CleanupContext, CleanupStatus, Difference, OtherProxy, SyncRequest
from pointsman.backends.nftables import schema
from pointsman.backends.nftables.apply import NftablesBackend
from pointsman.backends.nftables.batch import Steps
from pointsman.backends.nftables.compile import compile_fragment
from pointsman.backends.nftables.contents import Contents
from pointsman.backends.nftables.encode import TABLE_NAME
from pointsman.backends.nftables.fields import find_traits
from pointsman.backends.nftables.mode import clean_up
from pointsman.backends.nftables.schema import SetSpec
from pointsman.errors import Busy
from pointsman.kernel import nf_tables as nf
from pointsman.kernel.attributes import pack_u32be
from pointsman.kernel.netlink import NLM_F_CREATE
from pointsman.kernel.nfnl import NftablesSocket, build_nftables_message
from pointsman.kernel.sysctl import Sysctls
from pointsman.lab.netns import Namespace
from pointsman.model.addresses import Family, cidr_from_text
from pointsman.model.node_context import NodePortAddresses
from pointsman.model.plan import ServicePlan
from pointsman.model.service import FlowTimeouts, Protocol, ServicePortName

pytestmark = needs_nft

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
NODE = context(
    node_port_addresses=NodePortAddresses(match_all=False, addresses=(packed("10.9.9.9"),)),
)
RANGES = tuple(filter(None, [cidr_from_text("203.0.113.0/24")]))
Plans = dict[ServicePortName, ServicePlan]


def some_plans(count: int = 5) -> Plans:
    """Services with every kind of element: node ports, source ranges, affinity, none without endpoints."""
    found: Plans = {}
    for number in range(count):
        port = service_port(
            name=f"svc-{number}",
            cluster_ip=f"10.96.0.{number + 1}",
            node_port=30000 + number,
            load_balancer_ips=(f"198.51.100.{number + 1}",) if number == 1 else (),
            source_ranges=RANGES if number == 1 else (),
            affinity_seconds=600 if number == 2 else 0,
        )
        endpoints = () if number == 3 else (endpoint(f"10.244.{number}.1"), endpoint(f"10.244.{number}.2"))
        made = plan(port, *endpoints, node_context=NODE)
        found[made.name] = made
    return found


def assert_all_served(backend: NftablesBackend, request: SyncRequest) -> None:
    assert backend.prepare_comparison(request).differences() == []
    assert backend.find_drift() is None


# --- tables of another shape --------------------------------------------------------------------------------

WRONG_TYPES = """
table ip kube-proxy {
    comment "%s"
    set cluster-ips { type inet_service; }
    map service-ips { type ipv4_addr : verdict; }
    chain services { type filter hook prerouting priority 0; policy accept; }
}
"""


def test_sets_of_other_types_under_our_comment_cost_no_service(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    namespace.run(["nft", "-f", "-"], WRONG_TYPES % schema.build_table_comment(counters=False))
    request = everything(NODE, some_plans())
    report = backend.sync(request)
    assert report.rejected == {}
    assert_all_served(backend, request)


def test_sets_of_other_types_put_there_while_we_run_cost_no_service(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    plans = some_plans()
    backend.sync(everything(NODE, plans))
    namespace.run(["nft", "delete", "table", "ip", "kube-proxy"])
    namespace.run(["nft", "-f", "-"], WRONG_TYPES % schema.build_table_comment(counters=False))
    name = next(iter(plans))
    plans[name] = plan(plans[name].port, endpoint("10.244.0.7"), node_context=NODE)
    report = backend.sync(part(NODE, plans, name))
    assert report.rejected == {}
    assert_all_served(backend, everything(NODE, plans))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (schema.CLUSTER_IPS, {"dynamic": True}),
        (schema.FIREWALL_ALLOW, {"interval": False}),
        (schema.NODEPORT_IPS, {"dynamic": True}),
    ],
)
def test_a_release_that_forgot_to_raise_the_layout_number_still_serves_everything(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, name: str, change: dict[str, bool]
) -> None:
    real = schema.build_static_sets

    def older_sets(*, counters: bool = False) -> tuple[SetSpec, ...]:
        return tuple(
            msgspec.structs.replace(spec, **change) if spec.name == name else spec
            for spec in real(counters=counters)
        )

    with monkeypatch.context() as patch:
        patch.setattr(schema, "build_static_sets", older_sets)
        older = NftablesBackend(Family.IPV4)
        older.sync(everything(NODE, {}))
        older.close()
    newer = NftablesBackend(Family.IPV4)
    request = everything(NODE, some_plans())
    report = newer.sync(request)
    assert report.rejected == {}
    assert_all_served(newer, request)
    newer.close()


def test_affinity_survives_when_a_refused_service_makes_the_load_go_a_second_way(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    plans = some_plans()
    backend.sync(everything(NODE, plans))
    before = table_handle(namespace)
    thief = plan(
        service_port(name="thief", cluster_ip="10.96.0.1"), endpoint("10.244.9.9"), node_context=NODE
    )
    report = backend.sync(everything(NODE, {**plans, thief.name: thief}))
    assert list(report.rejected) == [thief.name]
    assert table_handle(namespace) == before


# --- timeouts of flows --------------------------------------------------------------------------------------

LONGER = (
    "ct timeout ip kube-proxy udp-timeout-5 { protocol udp ; policy = { unreplied : 50, replied : 50 } ; }"
)


def plans_with_timeouts(seconds: int = 5) -> Plans:
    """One with a balancer and one with session affinity."""
    made = [
        plan(
            service_port(
                name=name,
                protocol=Protocol.UDP,
                cluster_ip=address,
                affinity_seconds=affinity,
                flow_timeouts=FlowTimeouts(udp=seconds),
            ),
            endpoint("10.244.0.1"),
            endpoint("10.244.0.2"),
            node_context=NODE,
        )
        for name, address, affinity in (("dns", "10.96.0.10", 0), ("game", "10.96.0.11", 600))
    ]
    return {one.name: one for one in made}


def test_a_changed_timeout_is_noticed_shown_and_repaired(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    request = everything(NODE, plans_with_timeouts())
    backend.sync(request)
    assert_all_served(backend, request)
    whole = listing(namespace)
    chains = [part.split()[0] for part in whole.split("\tchain ")[1:] if "ct timeout set" in part]
    assert len(chains) > 2
    namespace.run(
        ["nft", "-f", "-"],
        "\n".join(
            [
                *(f"flush chain ip kube-proxy {chain}" for chain in chains),
                "delete ct timeout ip kube-proxy udp-timeout-5",
                f"add {LONGER}",
            ]
        )
        + "\n",
    )
    found = backend.find_drift()
    assert found is not None
    assert any("udp-timeout-5" in one.what for one in backend.prepare_comparison(request).differences())
    backend.sync(request)
    assert_all_served(backend, request)
    assert listing(namespace) == whole


def test_a_timeout_of_no_service_goes_with_the_next_full_sync(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    backend.sync(everything(NODE, plans_with_timeouts(7)))
    namespace.run(["nft", f"add {LONGER}"])
    found = backend.find_drift()
    assert found is not None
    assert found.what == "ct timeout udp-timeout-5"
    request = everything(NODE, plans_with_timeouts(9))
    backend.sync(request)
    assert re.findall(r"ct timeout (\S+) \{", listing(namespace)) == ["udp-timeout-9"]
    backend.sync(everything(NODE, some_plans()))
    assert "ct timeout" not in listing(namespace)


def test_a_kernel_without_timeouts_serves_all_the_same_and_says_so(namespace: Namespace) -> None:
    request = everything(NODE, plans_with_timeouts())
    with contextlib.closing(
        NftablesBackend(Family.IPV4, lacks_timeouts=lambda _socket, _traits: True)
    ) as poor:
        report = poor.sync(request)
        assert [one.reason for one in report.conditions] == ["FlowTimeoutsMissing"]
        assert_all_served(poor, request)
    assert "ct timeout" not in listing(namespace)


# --- what drift and verify see ------------------------------------------------------------------------------

RULE_REPLACED = [
    "flush chain ip kube-proxy masquerading",
    "add rule ip kube-proxy masquerading counter accept",
    "add rule ip kube-proxy masquerading counter accept",
]
OTHER_HOOK = [
    "flush chain ip kube-proxy filter-output-pre-dnat",
    "delete chain ip kube-proxy filter-output-pre-dnat",
    "add chain ip kube-proxy filter-output-pre-dnat { type filter hook output priority 50 ; }",
    "add rule ip kube-proxy filter-output-pre-dnat ct state new jump firewall-check",
]
OTHER_TYPE = [
    "flush chain ip kube-proxy services",
    "flush chain ip kube-proxy cluster-ips-check",
    "delete set ip kube-proxy cluster-ips",
    "add set ip kube-proxy cluster-ips { type inet_service ; }",
]


@pytest.mark.parametrize(
    ("commands", "what"),
    [
        (["add table ip kube-proxy { flags dormant ; }"], "table ip kube-proxy"),
        (["add chain ip kube-proxy filter-output { policy drop ; }"], "chain filter-output"),
        (OTHER_HOOK, "chain filter-output-pre-dnat"),
        (RULE_REPLACED, "chain masquerading"),
        (OTHER_TYPE, "cluster-ips"),
        (["add set ip kube-proxy firewall-ips { type ipv4_addr ; }"], "firewall-ips"),
        (["add rule ip kube-proxy services tcp dport { 80, 443 } drop"], "services"),
        (["add rule ip kube-proxy services tcp dport 80 jump { drop ; }"], "__chain"),
    ],
    ids=["dormant", "policy", "hook", "rule", "type", "foreign set", "anonymous set", "anonymous chain"],
)
def test_damage_of_the_same_size_is_noticed_shown_and_repaired(
    namespace: Namespace, backend: NftablesBackend, commands: list[str], what: str
) -> None:
    request = everything(NODE, some_plans())
    backend.sync(request)
    whole = listing(namespace)
    assert backend.find_drift() is None
    namespace.run(["nft", "-f", "-"], "\n".join(commands) + "\n")
    found = backend.find_drift()
    assert found is not None
    assert what in found.what
    assert any(what in difference.what for difference in backend.prepare_comparison(request).differences())
    backend.sync(request)
    assert_all_served(backend, request)
    assert listing(namespace) == whole


@pytest.mark.parametrize(("size", "other"), [(8, 1), (12, 2)])
def test_a_rule_that_differs_in_one_number_is_noticed_shown_and_repaired(
    namespace: Namespace, backend: NftablesBackend, size: int, other: int
) -> None:
    endpoints = [endpoint(f"10.244.0.{number + 1}") for number in range(size)]
    made = plan(service_port("web"), *endpoints, node_context=NODE)
    request = everything(NODE, {made.name: made})
    backend.sync(request)
    whole = listing(namespace)
    contents = Contents(NODE, counters=False)
    contents.load({made.name: compile_fragment(made, NODE)})
    (chain,) = (chain for chain in contents.list_chains() if chain.name == f"lb-{size}")
    asked, drawn = pack_u32be(nf.NFTA_NG_MODULUS, size), pack_u32be(nf.NFTA_NG_MODULUS, other)
    changed = tuple(rule._replace(expressions=rule.expressions.replace(asked, drawn)) for rule in chain.rules)
    assert changed != chain.rules
    steps = Steps(find_traits(Family.IPV4))
    batch = [
        steps.flush_rules(chain.name),
        *steps.add_rules(msgspec.structs.replace(chain, rules=changed)),
    ]
    socket = NftablesSocket()
    socket.commit([step.message for step in batch])
    socket.close()
    found = backend.find_drift()
    assert found is not None
    assert f"chain lb-{size} rule" in found.what
    assert any(
        f"chain lb-{size} rule" in one.what for one in backend.prepare_comparison(request).differences()
    )
    backend.sync(request)
    assert_all_served(backend, request)
    assert listing(namespace) == whole


@pytest.mark.parametrize(
    ("commands", "what"),
    [
        (
            [
                "delete element ip kube-proxy endpoints { 10.96.0.1 . tcp . 80 . 1 }",
                "add element ip kube-proxy endpoints { 10.96.0.1 . tcp . 80 . 1 : 10.244.66.6 . 8080 }",
            ],
            "map endpoints 10.96.0.1 . tcp . 80 . 1",
        ),
        (
            [
                "delete element ip kube-proxy service-ips { 10.96.0.1 . tcp . 80 }",
                "add element ip kube-proxy service-ips { 10.96.0.9 . tcp . 80 : goto lb-2 }",
            ],
            "map service-ips 10.96.0.1 . tcp . 80",
        ),
        (
            [
                "delete element ip kube-proxy cluster-ips { 10.96.0.2 }",
                "add element ip kube-proxy cluster-ips { 10.96.0.77 }",
            ],
            "set cluster-ips 10.96.0.2",
        ),
        (
            [
                "delete element ip kube-proxy firewall-allow { 198.51.100.2 . tcp . 80 . 203.0.113.0/24 }",
                "add element ip kube-proxy firewall-allow { 198.51.100.2 . tcp . 80 . 203.0.113.0/25 }",
            ],
            "set firewall-allow 198.51.100.2 . tcp . 80",
        ),
        (
            [
                "delete element ip kube-proxy nodeport-ips { 10.9.9.9 }",
                "add element ip kube-proxy nodeport-ips { 10.9.9.10 }",
            ],
            "set nodeport-ips 10.9.9.9",
        ),
    ],
    ids=["value", "verdict", "member", "range", "node port address"],
)
def test_elements_exchanged_for_others_are_found_by_the_comparison_that_follows(
    namespace: Namespace, backend: NftablesBackend, commands: list[str], what: str
) -> None:
    request = everything(NODE, some_plans())
    backend.sync(request)
    assert find_drift(backend, request) is None
    namespace.run(["nft", "-f", "-"], "\n".join(commands) + "\n")
    found = find_drift(backend, request)
    assert found is not None
    assert found.what.startswith(what)
    backend.sync(request)
    assert_all_served(backend, request)


def test_a_comparison_after_external_changes_follows_our_own_changes(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    plans = some_plans(12)
    backend.sync(everything(NODE, plans))
    names = list(plans)
    for number in range(60):
        namespace.run(["nft", "add", "table", "ip", f"other-{number}"])
        name = names[number % len(names)]
        if number % 7 == 0:
            plans.pop(name, None)
        else:
            port = service_port(
                name=name.service, cluster_ip=f"10.96.0.{1 + number % 12}", node_port=30000 + number % 12
            )
            endpoints = (endpoint(f"10.244.1.{n + 1}") for n in range(number % 5))
            plans[name] = plan(port, *endpoints, node_context=NODE)
        backend.sync(part(NODE, plans, name))
        assert find_drift(backend, everything(NODE, plans)) is None
    assert backend.external_changes == 60


def test_a_table_loaded_from_text_is_taken_over_in_place(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    request = everything(NODE, some_plans())
    backend.sync(request)
    text = table(namespace)
    namespace.run(["nft", "delete", "table", "ip", "kube-proxy"])
    namespace.run(["nft", "-f", "-"], text)
    before = table_handle(namespace)
    restarted = NftablesBackend(Family.IPV4)
    restarted.sync(request)
    assert table_handle(namespace) == before
    assert_all_served(restarted, request)
    restarted.close()


@pytest.mark.parametrize(
    "commands",
    [
        ["add table ip kube-proxy { flags dormant ; }"],
        ["add chain ip kube-proxy filter-output { policy drop ; }"],
        RULE_REPLACED,
        OTHER_TYPE,
        ["add rule ip kube-proxy filter-output drop"],
        ["delete element ip kube-proxy cluster-ips { 10.96.0.10 }"],
    ],
    ids=["dormant", "policy", "rule", "type", "appended rule", "element"],
)
def test_explain_names_damage_as_a_cause(
    namespace: Namespace, backend: NftablesBackend, commands: list[str]
) -> None:
    view = view_of(service(clusterIP="10.96.0.10"), endpoint_slice("10.244.1.5"))
    family = next(family for family in view.families if family.family is Family.IPV4)
    request = everything(family.context, family.plans)
    backend.sync(request)
    namespace.run(["nft", "-f", "-"], "\n".join(commands) + "\n")
    found = backend.prepare_comparison(request, only=family.plans).differences()
    seen = msgspec.structs.replace(family, differences=tuple(found))
    explanation = asked(msgspec.structs.replace(view, families=(seen,)), "web")
    assert "KernelDiffers" in codes(explanation)


def test_a_comparison_of_one_service_port_sees_its_damage_and_nothing_of_others(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    plans = some_plans()
    request = everything(NODE, plans)
    backend.sync(request)
    for name in plans:
        assert backend.prepare_comparison(request, only=[name]).differences() == []
    flushed = ["map service-ips", "map service-nodeports", "map endpoints", "set firewall-allow"]
    commands = [f"flush {kind} ip kube-proxy {name}" for kind, name in map(str.split, flushed)]
    namespace.run(["nft", "-f", "-"], "\n".join(commands) + "\n")
    everywhere = backend.prepare_comparison(request).differences()
    seen = set()
    for name in plans:
        found = backend.prepare_comparison(request, only=[name]).differences()
        own = [difference for difference in everywhere if difference.owner == name]
        assert sorted(map(str, found)) == sorted(map(str, own))
        seen |= {difference.what.split()[1] for difference in own}
    assert seen == {one.split()[1] for one in flushed}


# --- other owners -------------------------------------------------------------------------------------------


def test_what_kube_proxy_left_in_our_table_goes_with_the_next_full_sync(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    request = everything(NODE, some_plans())
    backend.sync(request)
    whole, handle = listing(namespace), table_handle(namespace)
    namespace.run(
        ["nft", "-f", "-"],
        """
        table ip kube-proxy {
            map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
            chain firewall-ABCDEFGH-default/web/tcp/80 { drop; }
        }
        add element ip kube-proxy firewall-ips { 10.1.1.1 . tcp . 80 : goto firewall-ABCDEFGH-default/web/tcp/80 }
        """,
    )
    backend.sync(request)
    assert_all_served(backend, request)
    assert (listing(namespace), table_handle(namespace)) == (whole, handle)


def test_kube_proxy_writing_into_our_table_is_recognised(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    request = everything(NODE, some_plans())
    backend.sync(request)
    namespace.run(["nft", "flush", "table", "ip", "kube-proxy"])
    namespace.run(["nft", "-f", "-"], (GOLDEN / "clusterip-basic" / "nftables" / "nft.txt").read_text())
    found = backend.find_drift()
    assert found is not None
    assert found.other_proxy is OtherProxy.KUBE_PROXY


def test_a_table_of_kube_proxy_in_place_of_ours_is_recognised(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    backend.sync(everything(NODE, some_plans()))
    namespace.run(["nft", "delete", "table", "ip", "kube-proxy"])
    namespace.run(["nft", "-f", "-"], (GOLDEN / "clusterip-basic" / "nftables" / "nft.txt").read_text())
    assert backend.find_drift() == Difference(
        "table ip kube-proxy",
        schema.build_table_comment(counters=False),
        "rules for kube-proxy",
        other_proxy=OtherProxy.KUBE_PROXY,
    )


def test_another_pointsmans_table_in_place_of_ours_is_recognised(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    backend.sync(everything(NODE, some_plans()))
    namespace.run(["nft", "delete", "table", "ip", "kube-proxy"])
    other = NftablesBackend(Family.IPV4, service_metrics=True)
    other.sync(everything(NODE, some_plans()))
    other.close()
    assert backend.find_drift() == Difference(
        "table ip kube-proxy",
        schema.build_table_comment(counters=False),
        schema.build_table_comment(counters=True),
        other_proxy=OtherProxy.POINTSMAN,
    )


@pytest.mark.parametrize(
    ("inside", "other"),
    [
        ("", None),
        ("chain services { drop; }", None),
        ("chain other { type filter hook input priority 0; }", OtherProxy.UNKNOWN),
    ],
    ids=["nothing", "a chain nobody meets", "a base chain"],
)
def test_an_empty_table_in_place_of_ours_is_damage_and_no_other_proxys(
    namespace: Namespace, backend: NftablesBackend, inside: str, other: OtherProxy | None
) -> None:
    request = everything(NODE, some_plans())
    backend.sync(request)
    namespace.run(["nft", "delete", "table", "ip", "kube-proxy"])
    namespace.run(["nft", "-f", "-"], f"table ip kube-proxy {{\n{inside}\n}}\n")
    assert backend.find_drift() == Difference(
        "table ip kube-proxy",
        schema.build_table_comment(counters=False),
        "a table without comment",
        other_proxy=other,
    )
    backend.sync(request)
    assert_all_served(backend, request)


def owned_table() -> NftablesSocket:
    """The socket whose table nobody else may change while it is open."""
    owner = NftablesSocket()
    flags = pack_u32be(nf.NFTA_TABLE_FLAGS, nf.NFT_TABLE_F_OWNER)
    body = TABLE_NAME + flags
    owner.commit([build_nftables_message(nf.NFT_MSG_NEWTABLE, nf.NFPROTO_IPV4, NLM_F_CREATE, body)])
    return owner


def test_clean_up_names_the_owner_of_a_table_it_may_not_remove(namespace: Namespace) -> None:
    namespace.run(["nft", "add", "table", "ip6", "kube-proxy"])
    owner = owned_table()
    owned, other = clean_up(CleanupContext(Sysctls(), list(Family)))
    assert (owned.name, owned.status) == ("ip kube-proxy", CleanupStatus.FAILED)
    assert "owned by another process" in owned.why
    assert (other.name, other.status) == ("ip6 kube-proxy", CleanupStatus.REMOVED)
    owner.close()


def test_a_table_somebody_else_owns_is_reported_as_owned(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    owner = owned_table()
    request = everything(NODE, some_plans())
    with pytest.raises(Busy, match="table ip kube-proxy is owned by another process"):
        backend.sync(request)
    (difference,) = backend.prepare_comparison(request).differences()
    assert "owned by another process" in difference.have
    owner.close()
    backend.sync(request)
    assert_all_served(backend, request)


def test_a_set_with_another_key_type_is_a_difference_and_not_an_error(
    namespace: Namespace, backend: NftablesBackend
) -> None:
    request = everything(NODE, some_plans())
    backend.sync(request)
    namespace.run(["nft", "delete", "table", "ip", "kube-proxy"])
    namespace.run(["nft", "-f", "-"], WRONG_TYPES % schema.build_table_comment(counters=False))
    namespace.run(["nft", "add", "element", "ip", "kube-proxy", "cluster-ips", "{ 80, 443 }"])
    found = {difference.what: difference for difference in backend.prepare_comparison(request).differences()}
    assert found["set cluster-ips"].have == "another type"
    assert found["map service-ips"].have == "another type"
    assert found["chain services"].have == "type filter hook prerouting priority 0; policy accept"
