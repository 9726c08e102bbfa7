"""What a changed configuration asks of the process."""

from collections.abc import Iterator, Mapping

import pytest
from tests.harness.config_file import config_from_bytes

from pointsman.config import reload
from pointsman.config.document import plain_from_block
from pointsman.config.options import RunOptions
from pointsman.config.reload import Decision, Live, NoChange, Rejected, Restart, decide
from pointsman.errors import ConfigError

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def options(body: str = "") -> RunOptions:
    return RunOptions(program="pointsman", config=config_from_bytes((HEADER + body).encode()))


def decided(body: str, before: str = "") -> Decision:
    return decide(options(before), options(body))


def test_the_same_configuration_asks_for_nothing() -> None:
    assert decided("mode: ipvs", before="mode: ipvs") == NoChange(options("mode: ipvs"))


def test_a_configuration_that_cannot_be_read_is_turned_down_with_every_reason() -> None:
    assert decide(options(), ConfigError(["mode: unknown", "clusterCIDR: not a range"])) == Rejected(
        "mode: unknown\nclusterCIDR: not a range"
    )


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
        "oomScoreAdj: 0",
    ],
)
def test_these_apply_live(body: str) -> None:
    decision = decided(body)
    assert isinstance(decision, Live)
    assert decision.changes
    assert decision.touches(body.partition(":")[0])
    assert not decision.touches("mode")


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
    decision = decided(f"{body}\noomScoreAdj: 0")
    assert isinstance(decision, Restart)
    assert [change.path.partition(".")[0] for change in decision.changes] == [body.partition(":")[0]]
    assert decision.options.config.oom_score_adj == 0


def test_what_has_no_effect_here_is_no_change_to_report() -> None:
    decision = decided("winkernel: {networkName: x}\nportRange: 1-2")
    assert isinstance(decision, Live)
    assert decision.changes == ()


def test_changes_are_shown_with_both_values() -> None:
    live, restart = (
        decided("iptables: {syncPeriod: 1m}"),
        decided("mode: ipvs\nfeatureGates: {AllBeta: true}"),
    )
    assert isinstance(live, Live)
    assert [str(change) for change in live.changes] == ['iptables.syncPeriod: "30s" -> "1m0s"']
    assert isinstance(restart, Restart)
    assert [str(change) for change in restart.changes] == [
        "featureGates.AllBeta: null -> true",
        'mode: "" -> "ipvs"',
    ]


RESTARTING = {
    "clientConnection.acceptContentTypes",
    "clientConnection.contentType",
    "bindAddress",
    "clientConnection.burst",
    "clientConnection.kubeconfig",
    "clientConnection.qps",
    "enableProfiling",
    "featureGates",
    "hostnameOverride",
    "iptables.localhostNodePorts",
    "ipvs.excludeCIDRs",
    "ipvs.scheduler",
    "ipvs.strictARP",
    "ipvs.tcpFinTimeout",
    "ipvs.tcpTimeout",
    "ipvs.udpTimeout",
    "mode",
}


def leaves(plain: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in plain.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_field_is_put_into_one_of_the_three_groups_on_purpose() -> None:
    classified = (*reload.LIVE_FIELDS, *reload.FIELDS_WITHOUT_EFFECT)

    def is_under(field: str, path: str) -> bool:
        return field == path or field.startswith(f"{path}.")

    fields = list(leaves(plain_from_block(options().config)))
    assert [path for path in classified if not any(is_under(field, path) for field in fields)] == []
    assert {field for field in fields if not any(is_under(field, path) for path in classified)} == RESTARTING
