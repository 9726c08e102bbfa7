"""Every validation rule, by the field it names."""

from collections.abc import Sequence

import pytest
from tests.harness.config_file import config_from_bytes

from pointsman.config.defaults import with_mode
from pointsman.config.validate import find_problems

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def problems(body: str) -> Sequence[str]:
    config = config_from_bytes((HEADER + body).encode())
    return find_problems(with_mode(config, config.mode))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("mode: userspace", 'mode: Invalid value: "userspace": must be iptables, ipvs, nftables or blank (blank means the default mode)'),
        ("mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}", 'mode: Invalid value: "ipvs": must be iptables, nftables or blank (blank means the default mode)'),
        ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit: Invalid value: 32: must be within the range [0, 31]"),
        ("iptables: {masqueradeBit: -1}\nmode: nftables", "iptables.masqueradeBit: Invalid value: -1: must be within the range [0, 31]"),
        ("nftables: {masqueradeBit: 32}\nmode: nftables", "nftables.masqueradeBit: Invalid value: 32: must be within the range [0, 31]"),
        ("iptables: {syncPeriod: -1s, minSyncPeriod: -2s}\nmode: iptables", 'iptables.syncPeriod: Invalid value: "-1s": must be greater than 0'),
        ("iptables: {minSyncPeriod: -2s}\nmode: iptables", 'iptables.minSyncPeriod: Invalid value: "-2s": must be greater than or equal to 0'),
        ("ipvs: {minSyncPeriod: 40s}\nmode: ipvs", 'ipvs.syncPeriod: Invalid value: "30s": must be greater than or equal to KubeProxyConfiguration.ipvs.minSyncPeriod'),
        ("nftables: {minSyncPeriod: 31s}\nmode: nftables", 'nftables.syncPeriod: Invalid value: "30s": must be greater than or equal to KubeProxyConfiguration.nftables.minSyncPeriod'),
        ("ipvs: {tcpTimeout: -1s}\nmode: ipvs", 'ipvs.tcpTimeout: Invalid value: "-1s": must be greater than or equal to 0'),
        ("ipvs: {tcpFinTimeout: -1s}\nmode: ipvs", 'ipvs.tcpFinTimeout: Invalid value: "-1s": must be greater than or equal to 0'),
        ("ipvs: {udpTimeout: -1s}\nmode: ipvs", 'ipvs.udpTimeout: Invalid value: "-1s": must be greater than or equal to 0'),
        ("ipvs: {excludeCIDRs: [10.0.0.0/8, 10.0.0.1]}\nmode: ipvs", 'ipvs.excludeCIDRs[1]: Invalid value: "10.0.0.1": must be a valid CIDR'),
        ("configSyncPeriod: -1s", 'configSyncPeriod: Invalid value: "-1s": must be greater than 0'),
        ("bindAddress: node1", 'bindAddress: Invalid value: "node1": not a valid textual representation of an IP address'),
        ("healthzBindAddress: node1", 'healthzBindAddress: Invalid value: "node1": must be IP:port'),
        ("healthzBindAddress: node1:1", 'healthzBindAddress: Invalid value: "node1": must be a valid IP'),
        ("metricsBindAddress: 10.0.0.1:0", 'metricsBindAddress: Invalid value: "0": must be a valid port'),
        ("metricsBindAddress: 10.0.0.1:65536", 'metricsBindAddress: Invalid value: "65536": must be a valid port'),
        ("metricsBindAddress: '10.0.0.1:http'", 'metricsBindAddress: Invalid value: "http": must be a valid port'),
        ("metricsBindAddress: 'fd00::1:10249:'", 'metricsBindAddress: Invalid value: "fd00::1:10249:": must be IP:port'),
        ("nodePortAddresses: [primary, 10.0.0.1]", "nodePortAddresses[1]: Invalid value: \"10.0.0.1\": must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'"),
        ("nodePortAddresses: [all, 10.0.0.0/8, all]", 'nodePortAddresses[2]: Duplicate value: "all"'),
        ("detectLocalMode: None", 'detectLocalMode: Unsupported value: "None": supported values: "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", ""'),
        ("detectLocalMode: BridgeInterface", 'detectLocal.bridgeInterface: Invalid value: "": must not be empty'),
        ("detectLocalMode: InterfaceNamePrefix", 'detectLocal.interfaceNamePrefix: Invalid value: "": must not be empty'),
        ("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: 'cni0 -j ACCEPT'}", 'detectLocal.bridgeInterface: Invalid value: "cni0 -j ACCEPT": must be an interface name: at most 15 bytes, without spaces, quotes or slashes'),
        ("clusterCIDR: 10.0.0.1", 'clusterCIDR: Invalid value: "10.0.0.1": must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)'),
        ("clusterCIDR: '10.0.0.0/8,11.0.0.0/8'", 'clusterCIDR: Invalid value: "10.0.0.0/8,11.0.0.0/8": must be either a single CIDR or a dual-stack pair of CIDRs (e.g. 10.100.0.0/16,fde4:8dba:82e1::/48)'),
        ("clusterCIDR: '10.0.0.0/8,fd00::/64,fd01::/64'", 'clusterCIDR: Invalid value: "10.0.0.0/8,fd00::/64,fd01::/64": must be either a single CIDR or a dual-stack pair of CIDRs (e.g. 10.100.0.0/16,fde4:8dba:82e1::/48)'),
        ("conntrack: {min: -1}", "conntrack.min: Invalid value: -1: must be greater than or equal to 0"),
        ("conntrack: {maxPerCore: -1}", "conntrack.maxPerCore: Invalid value: -1: must be greater than or equal to 0"),
        ("conntrack: {tcpEstablishedTimeout: -5s}", 'conntrack.tcpEstablishedTimeout: Invalid value: "-5s": must be greater than or equal to 0'),
        ("conntrack: {tcpCloseWaitTimeout: -5s}", 'conntrack.tcpCloseWaitTimeout: Invalid value: "-5s": must be greater than or equal to 0'),
        ("conntrack: {udpTimeout: -5s}", 'conntrack.udpTimeout: Invalid value: "-5s": must be greater than or equal to 0'),
        ("conntrack: {udpStreamTimeout: -5s}", 'conntrack.udpStreamTimeout: Invalid value: "-5s": must be greater than or equal to 0'),
        ("clientConnection: {burst: -1}", "clientConnection.burst: Invalid value: -1: must be greater than or equal to 0"),
        ("oomScoreAdj: 1001", "oomScoreAdj: Invalid value: 1001: must be within the range [-1000, 1000]"),
        ("showHiddenMetricsForVersion: '1.30'", "showHiddenMetricsForVersion: Invalid value: \"1.30\": must be omitted or have the value '1.36'; only the previous minor version is allowed"),
        ("logging: {format: xml}", 'logging.format: Invalid value: "xml": must be text or json'),
        ("logging: {flushFrequency: -1s}", 'logging.flushFrequency: Invalid value: "-1s": must be greater than 0'),
        ("logging: {verbosity: 3000000000}", "logging.verbosity: Invalid value: 3000000000: must be <= 2147483647"),
        ("logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}", "logging.format: Forbidden: log format json is disabled, see feature gate LoggingBetaOptions"),
        ("logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}", "logging.vmodule: Forbidden: only supported for text log format"),
        ("logging: {vmodule: [{verbosity: 1}]}", "logging.vmodule[0]: Required value: file pattern must not be empty"),
        ("logging: {vmodule: [{filePattern: 'a=b'}]}", 'logging.vmodule[0]: Invalid value: "a=b": file pattern must not contain equal sign or comma'),
        ("logging: {options: {json: {splitStream: true}}}", "logging.options.json.splitStream: Forbidden: feature gate LoggingAlphaOptions is disabled"),
        ("logging: {options: {text: {infoBufferSize: 1Ki}}}", "logging.options.text.infoBufferSize: Forbidden: feature gate LoggingAlphaOptions is disabled"),
        ("featureGates: {WinDSR: false}", 'featureGates: Invalid value: {"WinDSR":false}: cannot set feature gate WinDSR to false, feature is locked to true'),
    ],
)  # fmt: skip
def test_rule_is_reported_by_field(body: str, problem: str) -> None:
    assert f"KubeProxyConfiguration.{problem}" in problems(body)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "mode: ipvs",
        "mode: nftables",
        "iptables: {syncPeriod: -1s}\nmode: ipvs",
        "ipvs: {udpTimeout: -1s, excludeCIDRs: [x]}\nmode: iptables",
        "nftables: {masqueradeBit: 99}\nmode: iptables",
        "clusterCIDR: '10.244.0.0/16,fd00:10:244::/48'",
        "clusterCIDR: nonsense\ndetectLocalMode: NodeCIDR",
        "nodePortAddresses: [primary, localhost, 10.0.0.0/8, 'fd00::/8']",
        "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
        "showHiddenMetricsForVersion: '1.36'",
        "healthzBindAddress: '[::]:10256'",
        "bindAddress: 010.0.0.1",
        "logging: {options: {text: {splitStream: true, infoBufferSize: 1Ki}}}\nfeatureGates: {LoggingAlphaOptions: true}",
        "featureGates: {AllAlpha: true, AllBeta: true}",
    ],
)
def test_usable_configurations_have_no_problems(body: str) -> None:
    assert problems(body) == []


def test_without_a_mode_both_possible_defaults_must_be_usable() -> None:
    assert (
        len(problems("iptables: {syncPeriod: -1s, minSyncPeriod: -1s}\nnftables: {masqueradeBit: 40}")) == 3
    )


def test_all_problems_come_at_once() -> None:
    found = problems("mode: x\noomScoreAdj: 5000\nconntrack: {min: -1, maxPerCore: -1}\nbindAddress: x\n")
    assert len(found) == 5
