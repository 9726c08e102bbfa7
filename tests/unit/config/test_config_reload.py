"""What a changed configuration asks of a running proxy."""

import msgspec
import pytest

from pointsman.config.document import plain_from_block
from pointsman.config.load import config_from_bytes
from pointsman.config.reload import reload_plan
from pointsman.config.types import KubeProxyConfiguration

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def config(body: str = "") -> KubeProxyConfiguration:
    return config_from_bytes((HEADER + body).encode())


def test_the_same_configuration_asks_for_nothing() -> None:
    plan = reload_plan(config("mode: ipvs"), config("mode: ipvs"))
    assert plan.is_empty
    assert not plan.needs_restart


@pytest.mark.parametrize(
    "body",
    [
        "logging: {verbosity: 4}",
        "logging: {vmodule: [{filePattern: a, verbosity: 3}]}",
        "logging: {format: json}",
        "iptables: {syncPeriod: 1m}",
        "nftables: {minSyncPeriod: 2s}",
        "ipvs: {syncPeriod: 1m}",
        "iptables: {masqueradeAll: true}",
        "nftables: {masqueradeBit: 3}",
        "nodePortAddresses: [primary]",
        "healthzBindAddress: 0.0.0.0:1",
        "metricsBindAddress: 0.0.0.0:1",
        "detectLocalMode: NodeCIDR",
        "detectLocal: {bridgeInterface: cni0}",
        "clusterCIDR: 10.0.0.0/8",
        "conntrack: {min: 5}",
        "configSyncPeriod: 1m",
        "oomScoreAdj: 0",
    ],
)
def test_these_apply_live(body: str) -> None:
    plan = reload_plan(config(), config(body))
    assert not plan.needs_restart
    assert plan.live
    assert plan.touches(body.partition(":")[0])


@pytest.mark.parametrize(
    "body",
    [
        "mode: nftables",
        "clientConnection: {kubeconfig: /x}",
        "clientConnection: {qps: 50}",
        "hostnameOverride: other",
        "featureGates: {KubeProxyIPVS: false}",
        "bindAddress: 10.0.0.1",
        "ipvs: {scheduler: lc}",
        "iptables: {localhostNodePorts: false}",
        "enableProfiling: true",
    ],
)
def test_these_restart_the_proxy_inside_the_process(body: str) -> None:
    assert reload_plan(config(), config(body)).needs_restart


def test_what_has_no_effect_here_is_told_apart() -> None:
    plan = reload_plan(config(), config("winkernel: {networkName: x}\nportRange: 1-2"))
    assert [change.path for change in plan.without_effect] == ["winkernel.networkName", "portRange"]
    assert not plan.needs_restart
    assert not plan.is_empty


def test_changes_are_shown_with_both_values() -> None:
    plan = reload_plan(
        config(), config("mode: ipvs\niptables: {syncPeriod: 1m}\nfeatureGates: {AllBeta: true}")
    )
    assert [str(change) for change in plan.live] == ['iptables.syncPeriod: "30s" -> "1m0s"']
    assert [str(change) for change in plan.restart] == [
        "featureGates.AllBeta: null -> true",
        'mode: "" -> "ipvs"',
    ]


def test_every_field_is_classified_by_a_path_that_exists() -> None:
    from pointsman.config import reload

    plain = plain_from_block(config())
    for path in (*reload._LIVE, *reload._WITHOUT_EFFECT):
        value: object = plain
        for name in path.split("."):
            assert isinstance(value, dict)
            assert name in value, path
            value = value[name]
    assert msgspec.json.encode(plain)
