"""Reading and writing configuration files."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.config_file import config_from_bytes

from pointsman.config.defaults import with_file_defaults, with_mode
from pointsman.config.load import LoadedConfig, config_to_json, config_to_yaml, load
from pointsman.config.types import (
    ClientConnection,
    Conntrack,
    FormatOptions,
    IPTables,
    IPVirtualServer,
    KubeProxyConfiguration,
    Logging,
    NFTables,
    OutputRouting,
    VModuleItem,
)
from pointsman.errors import ConfigError

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def loaded(body: str) -> LoadedConfig:
    return load((HEADER + body).encode())


def test_empty_file_has_upstreams_defaults() -> None:
    config = loaded("").config
    assert config.bind_address == "0.0.0.0"
    assert config.healthz_bind_address == "0.0.0.0:10256"
    assert config.metrics_bind_address == "127.0.0.1:10249"
    assert config.client_connection == ClientConnection(
        content_type="application/vnd.kubernetes.protobuf", qps=5.0, burst=10
    )
    assert config.iptables == IPTables(
        masquerade_bit=14,
        masquerade_all=False,
        localhost_node_ports=True,
        sync_period=timedelta(seconds=30),
        min_sync_period=timedelta(0),
    )
    assert config.ipvs.sync_period == timedelta(seconds=30)
    assert config.ipvs.min_sync_period == timedelta(0)
    assert config.nftables.min_sync_period == timedelta(0)
    assert config.oom_score_adj == -999
    assert config.conntrack.max_per_core == 32768
    assert config.conntrack.min == 131072
    assert config.conntrack.tcp_established_timeout == timedelta(hours=24)
    assert config.conntrack.tcp_close_wait_timeout == timedelta(hours=1)
    assert config.config_sync_period == timedelta(minutes=15)
    assert config.logging.flush_frequency == timedelta(seconds=5)
    assert config.mode == ""


def test_addresses_follow_the_family_of_the_bind_address() -> None:
    config = loaded("bindAddress: '::'\n").config
    assert config.healthz_bind_address == "[::]:10256"
    assert config.metrics_bind_address == "[::1]:10249"


def test_bare_ip_gets_the_default_port() -> None:
    config = loaded("healthzBindAddress: 10.0.0.1\nmetricsBindAddress: 'fd00::1'\n").config
    assert config.healthz_bind_address == "10.0.0.1:10256"
    assert config.metrics_bind_address == "[fd00::1]:10249"


def test_null_and_zero_mean_default_where_upstream_says_so() -> None:
    config = loaded(
        "iptables: {masqueradeBit: null, syncPeriod: 0s, minSyncPeriod: 0s}\n"
        "clientConnection: {qps: 0, burst: 0, contentType: ''}\nconfigSyncPeriod: 0s\n"
        "logging: {format: '', flushFrequency: 0}\nconntrack: {min: 0, tcpEstablishedTimeout: 0s}\n"
    ).config
    assert config.iptables == IPTables()
    assert config.client_connection == ClientConnection()
    assert config.config_sync_period == timedelta(minutes=15)
    assert config.logging == Logging()
    assert config.conntrack.min == 0
    assert config.conntrack.tcp_established_timeout == timedelta(0)


def test_json_is_read_too() -> None:
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "ipvs",
        "ipvs": {"scheduler": "mh", "excludeCIDRs": ["10.0.0.0/8"], "strictARP": True},
    }
    config = config_from_bytes(json.dumps(document).encode())
    assert config.ipvs == IPVirtualServer(scheduler="mh", exclude_cidrs=("10.0.0.0/8",), strict_arp=True)


def test_flush_frequency_may_be_nanoseconds_as_in_old_files() -> None:
    assert loaded("logging: {flushFrequency: 5000000000}\n").config.logging.flush_frequency == timedelta(
        seconds=5
    )


@pytest.mark.parametrize(
    "document",
    [
        b"kind: KubeProxyConfiguration\n",
        b"apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n",
        b"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n",
        b"apiVersion: 1\nkind: KubeProxyConfiguration\n",
        b"",
        b"[]",
        b"text",
        b"{",
        b"a: b: c",
        b"\xff\xfe\x00",
        b"a: &a [*a]",
        b"[" * 20000,
        b"!!python/object/apply:os.system ['true']",
    ],
)
def test_what_is_no_such_configuration_is_one_clear_error(document: bytes) -> None:
    with pytest.raises(ConfigError):
        load(document)


def test_wrong_version_and_kind_are_both_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load(b"apiVersion: v1\nkind: Service\n")
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["apiVersion", "kind"]


def test_unknown_fields_are_warned_about_with_the_nearest_name() -> None:
    found = loaded("clusterCidr: 10.0.0.0/8\niptables: {syncPeriodd: 1s}\nfrobnicate: 1\n")
    assert found.problems == ()
    assert found.warnings == (
        'unknown field "KubeProxyConfiguration.clusterCidr" is ignored, did you mean clusterCIDR?',
        'unknown field "KubeProxyConfiguration.iptables.syncPeriodd" is ignored, did you mean syncPeriod?',
        'unknown field "KubeProxyConfiguration.frobnicate" is ignored',
    )


@pytest.mark.parametrize(
    "text", [HEADER + "mode: ipvs\nmode: iptables\n", '{"mode": "ipvs", "mode": "iptables", %s}']
)
def test_duplicate_fields_are_warned_about_and_the_last_wins(text: str) -> None:
    if "%s" in text:
        text = text.replace(
            "%s", '"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"'
        )
    found = load(text.encode())
    assert found.config.mode == "iptables"
    assert found.warnings == ('field "mode" is given more than once; the last value is used',)


def test_only_the_first_document_counts_and_this_is_said() -> None:
    found = loaded("mode: ipvs\n---\nmode: iptables\n")
    assert found.config.mode == "ipvs"
    assert found.warnings == ("the file holds more than one YAML document; only the first is used",)


def test_every_unreadable_field_is_reported_with_its_path() -> None:
    found = loaded(
        "mode: 5\niptables: {masqueradeBit: x, masqueradeAll: maybe, syncPeriod: 30}\nnodePortAddresses: all\n"
        "conntrack: []\nclientConnection: {qps: fast, burst: 3000000000}\nfeatureGates: {A: 1}\n"
        "logging: {vmodule: [{filePattern: 1}], options: {text: {infoBufferSize: 1z}}}\nshowHiddenMetricsForVersion: 1.36\n"
        "ipvs: {syncPeriod: 1 day}\n"
    )
    assert [
        problem.partition(": ")[0].removeprefix("KubeProxyConfiguration.") for problem in found.problems
    ] == [
        "mode",
        "iptables.masqueradeBit",
        "iptables.masqueradeAll",
        "iptables.syncPeriod",
        "nodePortAddresses",
        "conntrack",
        "clientConnection.qps",
        "clientConnection.burst",
        "featureGates.A",
        "logging.vmodule[0].filePattern",
        "logging.options.text.infoBufferSize",
        "showHiddenMetricsForVersion",
        "ipvs.syncPeriod",
    ]
    with pytest.raises(ConfigError):
        config_from_bytes((HEADER + "mode: 5\n").encode())


def test_mode_picks_its_own_periods_masquerading_and_node_ports() -> None:
    config = loaded(
        "iptables: {syncPeriod: 11s, minSyncPeriod: 2s, masqueradeAll: true, masqueradeBit: 1}\n"
        "ipvs: {syncPeriod: 12s, minSyncPeriod: 3s}\n"
        "nftables: {syncPeriod: 13s, minSyncPeriod: 4s, masqueradeBit: 2}\n"
    ).config
    picked = {mode: with_mode(config, mode) for mode in ("iptables", "ipvs", "nftables")}
    assert [picked[mode].sync_period.seconds for mode in picked] == [11, 12, 13]
    assert [picked[mode].min_sync_period.seconds for mode in picked] == [2, 3, 4]
    assert [picked[mode].masquerade_all for mode in picked] == [True, True, False]
    assert [picked[mode].masquerade_bit for mode in picked] == [1, 1, 2]
    assert [picked[mode].node_port_addresses for mode in picked] == [(), (), ("primary",)]
    assert picked["ipvs"].detect_local_mode == "ClusterCIDR"


_durations = st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=1000))
_or_zero = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=1000))
_words = st.text(max_size=12)
_int32 = st.integers(-(1 << 31), (1 << 31) - 1)


def _built(block: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(fields).map(lambda values: block(**values))


configs = _built(
    KubeProxyConfiguration,
    feature_gates=st.dictionaries(_words, st.booleans(), max_size=3),
    client_connection=_built(
        ClientConnection,
        kubeconfig=_words,
        qps=st.floats(0.5, 1e6, width=32),
        burst=st.integers(1, 1000),
    ),
    logging=_built(
        Logging,
        verbosity=st.integers(0, 10),
        flush_frequency=_durations,
        vmodule=st.lists(
            _built(VModuleItem, file_pattern=_words, verbosity=st.integers(0, 9)), max_size=2
        ).map(tuple),
        options=_built(
            FormatOptions,
            json=_built(OutputRouting, split_stream=st.booleans(), info_buffer_size=st.integers(0, 1 << 40)),
        ),
    ),
    hostname_override=_words,
    bind_address=_words.filter(bool),
    mode=_words,
    iptables=_built(IPTables, sync_period=_durations, min_sync_period=_durations, masquerade_bit=_int32),
    ipvs=_built(
        IPVirtualServer,
        sync_period=_durations,
        min_sync_period=_or_zero,
        exclude_cidrs=st.lists(_words).map(tuple),
    ),
    nftables=_built(NFTables, masquerade_all=st.booleans()),
    cluster_cidr=_words,
    node_port_addresses=st.lists(_words, max_size=3).map(tuple),
    conntrack=_built(Conntrack, min=_int32, udp_timeout=_or_zero),
    windows_run_as_service=st.booleans(),
)


@settings(deadline=None)
@given(configs)
def test_a_written_configuration_reads_back_the_same(config: KubeProxyConfiguration) -> None:
    config = with_file_defaults(config)
    for text in (config_to_yaml(config).encode(), config_to_json(config)):
        found = load(text)
        assert found.problems == ()
        assert found.config == config


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["mode", "iptables", "syncPeriod", "logging", "vmodule", "featureGates", "x"]
                ),
                inner,
            )
        ),
        max_leaves=8,
    )
)
def test_no_plain_document_raises_anything_but_config_error(body: Any) -> None:
    document = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
    if isinstance(body, dict):
        document |= body
    load(yaml.safe_dump(document).encode())


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_config_error(data: bytes) -> None:
    with pytest.raises(ConfigError):
        load(data)


def test_external_form_has_upstreams_names() -> None:
    plain = msgspec.json.decode(config_to_json(loaded("").config))
    assert plain["apiVersion"] == "kubeproxy.config.k8s.io/v1alpha1"
    assert plain["kind"] == "KubeProxyConfiguration"
    assert plain["clusterCIDR"] == ""
    assert plain["ipvs"]["excludeCIDRs"] is None
    assert plain["ipvs"]["strictARP"] is False
    assert plain["winkernel"]["enableDSR"] is False
    assert plain["iptables"]["syncPeriod"] == "30s"
    assert plain["conntrack"]["tcpEstablishedTimeout"] == "24h0m0s"
