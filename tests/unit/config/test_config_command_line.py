"""Flags, file and defaults together: who wins, what is warned about, what is refused."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from pointsman.config.command_line import MAX_FILE_BYTES, parse_run
from pointsman.config.flags import FLAGS, list_flag_texts, render_document, render_help
from pointsman.config.goflags import Kind
from pointsman.config.load import config_to_yaml
from pointsman.config.options import RunOptions
from pointsman.config.types import KubeProxyConfiguration, VModuleItem
from pointsman.errors import ConfigError
from pointsman.model.balancing import BalancingDefaults, Scheduler

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


def as_kube_proxy(*argv: str) -> RunOptions:
    return parse_run(argv, program="kube-proxy")


def problems(*argv: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        as_kube_proxy(*argv)
    return caught.value.problems


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(
        HEADER
        + "mode: ipvs\nhostnameOverride: FromFile\nlogging: {verbosity: 1, vmodule: [{filePattern: f, verbosity: 1}]}\n"
    )
    return file


def test_kube_proxy_without_a_mode_is_iptables() -> None:
    options = as_kube_proxy()
    assert options.config.mode == "iptables"
    assert not options.mode_explicit
    assert options.config.node_port_addresses == ()
    assert options.config.detect_local_mode == "ClusterCIDR"


def test_pointsman_without_a_mode_leaves_the_choice_open() -> None:
    options = parse_run([], program="pointsman")
    assert options.config.mode == ""
    assert not options.mode_explicit


def test_named_mode_is_explicit() -> None:
    options = parse_run(["--proxy-mode=nftables"], program="pointsman")
    assert options.mode_explicit
    assert options.config.node_port_addresses == ("primary",)


@pytest.mark.parametrize(
    "flag", [flag for flag in FLAGS if flag.fields and flag.default], ids=lambda flag: flag.name
)
def test_default_in_the_table_is_the_effective_default(flag: object) -> None:
    given = as_kube_proxy(f"--{flag.name}={flag.default}")  # type: ignore[attr-defined]
    assert given.config == as_kube_proxy().config


def test_every_flag_of_kube_proxy_reaches_its_field() -> None:
    examples = {
        Kind.STRING: "iptables",
        Kind.BOOL: "true",
        Kind.INT32: "7",
        Kind.UINT32: "7",
        Kind.FLOAT32: "7",
        Kind.DURATION: "7s",
        Kind.LIST: "10.0.0.0/8",
        Kind.SWITCHES: "LoggingAlphaOptions=true",
        Kind.IP: "10.0.0.7",
        Kind.IP_PORT: "10.0.0.7:7",
        Kind.QUANTITY: "7",
        Kind.VMODULE: "x=7",
    }
    special = {
        "detect-local-mode": "NodeCIDR",
        "cluster-cidr": "10.0.0.0/8",
        "logging-format": "json",
        "show-hidden-metrics-for-version": "1.36",
        "proxy-mode": "ipvs",
        "iptables-localhost-nodeports": "false",
    }
    base = as_kube_proxy("--feature-gates=LoggingAlphaOptions=true").config
    for flag in FLAGS:
        if flag.fields and flag.name != "feature-gates":
            text = special.get(flag.name, examples[flag.kind])
            config = as_kube_proxy("--feature-gates=LoggingAlphaOptions=true", f"--{flag.name}={text}").config
            for field in flag.fields:
                assert _at(config, field) != _at(base, field), flag.name


def _at(config: KubeProxyConfiguration, field: str) -> object:
    value: object = config
    for name in field.split("."):
        value = getattr(value, name)
    return value


def test_min_sync_period_is_by_cost_unless_it_is_set(config_file: Path) -> None:
    for mode in ("iptables", "ipvs", "nftables"):
        assert as_kube_proxy(f"--proxy-mode={mode}").config.min_sync_period == timedelta(0)
        flag = "ipvs" if mode == "ipvs" else "iptables"
        explicit = as_kube_proxy(f"--proxy-mode={mode}", f"--{flag}-min-sync-period=1s")
        assert explicit.config.min_sync_period == timedelta(seconds=1)
    assert as_kube_proxy(f"--config={config_file}").config.min_sync_period == timedelta(0)


def test_iptables_periods_count_in_nftables_mode_and_not_in_ipvs_mode() -> None:
    argv = ["--iptables-sync-period=7s", "--iptables-min-sync-period=0s"]
    nftables = as_kube_proxy("--proxy-mode=nftables", *argv).config
    assert (nftables.sync_period, nftables.min_sync_period) == (timedelta(seconds=7), timedelta(0))
    assert as_kube_proxy("--proxy-mode=ipvs", *argv).config.sync_period == timedelta(seconds=30)


def test_explicit_zero_period_is_refused_where_a_file_means_the_default() -> None:
    assert problems("--iptables-sync-period=0s", "--iptables-min-sync-period=0s") == (
        'KubeProxyConfiguration.iptables.syncPeriod: Invalid value: "0s": must be greater than 0',
    )


def test_with_a_file_only_node_name_and_logging_flags_count(config_file: Path) -> None:
    options = as_kube_proxy(
        f"--config={config_file}",
        "--proxy-mode=iptables",
        "--kubeconfig=/x",
        "--hostname-override= NODE1 ",
        "-v=5",
        "--vmodule=a=2",
        "--master=https://10.0.0.1",
    )
    assert options.config.mode == "ipvs"
    assert options.mode_explicit
    assert options.config.client_connection.kubeconfig == ""
    assert options.config.hostname_override == "node1"
    assert options.config.logging.verbosity == 5
    assert options.config.logging.vmodule == (
        VModuleItem(file_pattern="a", verbosity=2),
        VModuleItem(file_pattern="f", verbosity=1),
    )
    assert options.master == "https://10.0.0.1"
    assert options.warnings == (
        f"flag --proxy-mode is ignored because --config is given; set it in {config_file}",
        f"flag --kubeconfig is ignored because --config is given; set it in {config_file}",
    )


def test_file_alone_decides_the_rest(config_file: Path) -> None:
    options = as_kube_proxy("--config", str(config_file))
    assert options.config.hostname_override == "fromfile"
    assert options.config.logging.verbosity == 1
    assert options.config_file == config_file
    assert options.warnings == ()


def test_calling_again_reads_the_file_again(config_file: Path) -> None:
    argv = [f"--config={config_file}"]
    assert as_kube_proxy(*argv).config.mode == "ipvs"
    config_file.write_text(HEADER + "mode: nftables\n")
    assert as_kube_proxy(*argv).config.mode == "nftables"


def test_problems_of_the_file_come_with_those_of_validation(config_file: Path) -> None:
    config_file.write_text(HEADER + "mode: x\niptables: {masqueradeBit: y}\noomScoreAdj: 5000\n")
    assert [
        problem.split(":")[0] for problem in problems(f"--config={config_file}", "--service-metrics-limit=0")
    ] == [
        "KubeProxyConfiguration.iptables.masqueradeBit",
        "KubeProxyConfiguration.mode",
        "KubeProxyConfiguration.oomScoreAdj",
        "--service-metrics-limit",
    ]


@pytest.mark.parametrize("name", ["", "missing.yaml", "bad.yaml"])
def test_unreadable_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.yaml").write_text("kind: Pod")
    found = problems(f"--config={tmp_path / name}")
    assert all(str(tmp_path / name) in problem for problem in found)


def test_blank_node_name_is_refused() -> None:
    assert problems("--hostname-override=  ") == (
        'KubeProxyConfiguration.hostnameOverride: Invalid value: "  ": must not be blank',
    )


def test_addresses_follow_the_bind_address_given_as_a_flag() -> None:
    config = as_kube_proxy("--bind-address=fd00::1").config
    assert (config.healthz_bind_address, config.metrics_bind_address) == ("[::]:10256", "[::1]:10249")


@pytest.mark.parametrize(
    ("argv", "healthz", "metrics"),
    [
        (["--healthz-port=0"], "", "127.0.0.1:10249"),
        (["--metrics-port=0"], "0.0.0.0:10256", ""),
        (["--metrics-bind-address="], "0.0.0.0:10256", ""),
        (["--healthz-bind-address="], "0.0.0.0:10256", "127.0.0.1:10249"),
        (["--healthz-port=1", "--metrics-port=2"], "0.0.0.0:1", "127.0.0.1:2"),
        (["--healthz-bind-address=10.0.0.1", "--healthz-port=1"], "10.0.0.1:1", "127.0.0.1:10249"),
        (["--healthz-bind-address=10.0.0.1:5", "--healthz-port=1"], "10.0.0.1:5", "127.0.0.1:10249"),
        (["--metrics-bind-address=fd00::1"], "0.0.0.0:10256", "[fd00::1]:10249"),
        (["--bind-address="], "0.0.0.0:10256", "127.0.0.1:10249"),
    ],
)
def test_where_health_and_metrics_are_served(argv: list[str], healthz: str, metrics: str) -> None:
    config = as_kube_proxy(*argv).config
    assert (config.healthz_bind_address, config.metrics_bind_address) == (healthz, metrics)


def test_deprecated_flags_are_warned_about() -> None:
    assert as_kube_proxy("--healthz-port=1").warnings == (
        "flag --healthz-port is deprecated: use --healthz-bind-address instead",
    )


def test_gates_from_flags_are_warned_about() -> None:
    assert len(as_kube_proxy("--feature-gates=KubeProxyIPVS=true").warnings) == 1


def test_own_flags_work_under_both_names() -> None:
    argv = [
        "--manifests=/m",
        "--check",
        "--service-metrics",
        "--service-metrics-limit=5",
        "--control-socket=",
        "--state-dir=/s",
        "--external-ip-allow-cidrs=10.0.0.0/8,fd00::/8",
        "--cleanup",
        "--init-only",
        "--write-config-to=/w",
        "--version=v1.2.3",
    ]
    for program in ("kube-proxy", "pointsman"):
        options = parse_run(argv, program=program)
        assert options.manifests == Path("/m")
        assert options.once.check
        assert options.service_metrics
        assert options.service_metrics_limit == 5
        assert options.paths.control_socket is None
        assert options.paths.state_dir == Path("/s")
        assert options.external_ip_allow_cidrs == ("10.0.0.0/8", "fd00::/8")
        assert options.once.cleanup
        assert options.once.init_only
        assert options.once.write_config_to == Path("/w")
        assert options.once.version == ""


def test_own_defaults() -> None:
    options = as_kube_proxy()
    assert options.paths.control_socket == Path("/run/pointsman/control.sock")
    assert options.paths.state_dir == Path("/run/pointsman")
    assert options.external_ip_allow_cidrs == ()


def test_defaults_of_balancing_come_from_flags_and_bad_ones_are_named() -> None:
    options = as_kube_proxy(
        "--default-scheduler=source-hash",
        "--default-slow-start=1m",
        "--source-hash-seed=7",
        "--source-hash-slots=128",
    )
    assert options.balancing == BalancingDefaults(Scheduler.SOURCE_HASH, 60, 7, 128)
    assert as_kube_proxy("--reset-gone").balancing == BalancingDefaults(reset_gone=True)
    assert as_kube_proxy().balancing == BalancingDefaults()
    found = problems(
        "--default-scheduler=lc", "--default-slow-start=2h", "--source-hash-seed=0", "--source-hash-slots=9"
    )
    assert [message.partition(":")[0] for message in found] == [
        "--default-scheduler",
        "--default-slow-start",
        "--source-hash-seed",
        "--source-hash-slots",
    ]


def test_bad_allow_list_is_refused() -> None:
    assert problems("--external-ip-allow-cidrs=10.0.0.1") == (
        '--external-ip-allow-cidrs: Invalid value: "10.0.0.1": must be a valid CIDR',
    )


@pytest.mark.parametrize("argv", [["--help", "--oom-score-adj=5000"], ["--version", "--config=/nonexistent"]])
def test_help_and_version_need_no_valid_configuration(argv: list[str]) -> None:
    options = as_kube_proxy(*argv)
    assert options.once.help or options.once.version == "true"


def test_flagz_shows_given_text_and_defaults() -> None:
    shown = dict(
        list_flag_texts(as_kube_proxy("-v=3", "--nodeport-addresses=a/1,primary", "--help").flags_set)
    )
    assert shown["v"] == "3"
    assert shown["nodeport-addresses"] == "a/1,primary"
    assert shown["oom-score-adj"] == "-999"
    assert len(shown) == len(FLAGS)


def test_help_names_every_flag_in_its_group() -> None:
    text = render_help("kube-proxy")
    assert all(f"--{flag.name}" in text for flag in FLAGS)
    assert text.index("Pointsman flags:") > text.index("Logging flags:")


def test_written_configuration_reads_back_to_the_same(tmp_path: Path) -> None:
    options = as_kube_proxy("--proxy-mode=nftables", "--cluster-cidr=10.0.0.0/8", "-v=3", "--conntrack-min=0")
    file = tmp_path / "written.yaml"
    file.write_text(config_to_yaml(options.config))
    assert as_kube_proxy(f"--config={file}").config == options.config


def test_flags_document_is_up_to_date() -> None:
    document = Path(__file__).parents[3] / "docs" / "flags.md"
    assert document.read_text() == render_document(), "run: python -m pointsman.config.flags > docs/flags.md"


def test_logging_block_becomes_log_settings() -> None:
    argv = [
        "--feature-gates=LoggingAlphaOptions=true",
        "--log-text-split-stream",
        "--log-text-info-buffer-size=1Ki",
    ]
    settings = as_kube_proxy(*argv, "-v=2", "--vmodule=sync*=6").config.logging.to_settings()
    assert settings.split_stream
    assert settings.info_buffer_size == 1024
    assert settings.verbosity == 2
    assert settings.vmodule == (("sync*", 6),)
    assert settings.flush_seconds == 5.0


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ("nonsense", "must be an IP address"),
        ("127.0.0.1", "it is loopback"),
        ("192.0.2.1,192.0.2.2", "only one IPv4 address is possible"),
    ],
)
def test_probe_addresses_are_checked(addresses: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_run([f"--probe-addresses={addresses}"], program="pointsman")
    assert parse_run(["--probe-addresses=192.0.2.1,2001:db8::1"], program="pointsman").probe_addresses == (
        "192.0.2.1",
        "2001:db8::1",
    )


def test_a_configuration_file_has_a_limit_and_must_be_a_regular_file(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_text(HEADER + "#" * MAX_FILE_BYTES)
    assert problems(f"--config={large}") == (f"--config: cannot read {large}: larger than 4 MiB",)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert problems(f"--config={fifo}") == (f"--config: cannot read {fifo}: not a regular file",)


def test_flags_that_need_each_other_are_given_together() -> None:
    assert problems("--tls-cert-file=a", "--client-ca-file=b", "--token-audiences=c") == (
        '--tls-cert-file: Invalid value: "a": needs --tls-private-key-file',
        '--tls-cert-file: Invalid value: "a": needs --secure-metrics or --secure-health',
        '--client-ca-file: Invalid value: "b": needs --secure-metrics',
        '--token-audiences: Invalid value: ["c"]: needs --secure-metrics',
    )
    (problem,) = problems("--secure-metrics=all", "--manifests=m")
    assert "--secure-metrics" in problem
    assert "API server" in problem
    (problem,) = problems("--secure-metrics=maybe")
    assert "must be one of remote, all" in problem
    options = as_kube_proxy("--secure-metrics=remote", "--tls-cert-file=a", "--tls-private-key-file=b")
    assert options.serving.metrics == "remote"
    assert (options.serving.certificate, options.serving.key) == (Path("a"), Path("b"))


@pytest.mark.parametrize("flag", ["node-condition", "remove-startup-taint"])
def test_what_is_written_to_the_node_needs_an_api_server(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag}.*needs an API server"):
        parse_run(["--manifests=/objects", f"--{flag}"], program="pointsman")
    assert parse_run([f"--{flag}=false", "--manifests=/objects"], program="pointsman").manifests is not None
